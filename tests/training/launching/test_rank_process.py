"""The program of a rank, without MPI."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from feature_datasets import write_dataset
from training_runs import make_spec

from training.launching import rank_process
from training.launching.rank import RunSpec
from training.transports.transport import Transport


@pytest.mark.parametrize("runs", [["only"], ["first", "second"]])
def test_the_transport_of_the_last_run_was_never_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[str]
) -> None:
    done: list[str] = []

    class Opened(Transport):
        def __init__(self, **_: object) -> None:
            super().__init__()
            done.append("open")

        def close(self) -> None:
            done.append("close")

        def abort(self) -> None:
            done.append("abort")

    def train(spec: RunSpec, *_: object, **__: object) -> None:
        done.append(spec.out_dir.name)

    given: Any = SimpleNamespace(folder=tmp_path / "data")
    listed = []
    for number, name in enumerate(runs):
        place = tmp_path / f"{name}.json"
        make_spec(given, tmp_path / name, algorithm="sgd", workers=1).save(place)
        listed.append({"number": number, "spec": str(place)})
    argument = tmp_path / "runs.json"
    argument.write_text(json.dumps(listed))
    # The thread that ends an orphaned process would outlive the test.
    monkeypatch.setattr(rank_process, "_exit_when_orphaned", lambda _: None)
    monkeypatch.setattr(rank_process, "load_mpi", lambda: SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0)))
    monkeypatch.setattr(rank_process, "MpiTransport", Opened)
    monkeypatch.setattr(rank_process, "train", train)
    assert rank_process.main(["rank", str(argument)]) == 0
    assert done == [each for name in runs for each in ("open", name, "close")]


def test_arguments_of_the_launcher_are_not_written(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [2], "test": [2]})
    spec = make_spec(dataset, tmp_path / "out", launcher_args=["-x", "MY_TOKEN=hush"])
    spec.save(tmp_path / "run.json")
    assert "hush" not in (tmp_path / "run.json").read_text()
    assert RunSpec.load(tmp_path / "run.json").train == spec.train.model_copy(update={"launcher_args": []})
