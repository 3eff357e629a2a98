"""Numbers for TensorBoard."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from event_files import scalars
from feature_datasets import write_dataset
from training_runs import make_spec, records

from training.errors import LaunchError
from training.launching.launcher import launch
from training.loop.scalars import TensorBoardScalars


def test_an_epochs_numbers_are_written(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20, 20], "val": [10], "test": [5]})
    run = make_spec(dataset, tmp_path / "out", algorithm="sgd", workers=1, epochs=3, tensorboard=True)
    launch(run, on_progress=lambda _: None)
    expected = [(record["epoch"], pytest.approx(record["val_loss"])) for record in records(run.out_dir)[0]]
    assert scalars(run.out_dir / "tensorboard", "val_loss") == expected


def test_without_the_package_the_key_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *more: Any, real: Any = builtins.__import__) -> Any:
        if name == "tensorboardX":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LaunchError, match="pip install tensorboardX"):
        TensorBoardScalars(tmp_path)
