"""The program of a rank, without MPI."""

from __future__ import annotations

from pathlib import Path

from feature_datasets import write_dataset
from training_runs import make_spec

from training.launching.rank import RunSpec


def test_arguments_of_the_launcher_are_not_written(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [2], "test": [2]})
    spec = make_spec(dataset, tmp_path / "out", launcher_args=["-x", "MY_TOKEN=hush"])
    spec.save(tmp_path / "run.json")
    assert "hush" not in (tmp_path / "run.json").read_text()
    assert RunSpec.load(tmp_path / "run.json").train == spec.train.model_copy(update={"launcher_args": []})
