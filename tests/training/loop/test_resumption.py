"""A run says whether it continues an interrupted one, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from example_checkpoints import write_checkpoint

from hep_core.integrity import with_seal
from training.loop.checkpoints import CheckpointFolder
from training.loop.resumption import describe_start, settings_digest
from training.readers.units import Position
from training.settings import TrainSettings

CONTINUES = "training continues from the checkpoint of an interrupted run"
BEGINS_AGAIN = "training begins again: "
OTHER_WORKERS = (
    f"{BEGINS_AGAIN}of the interrupted run each worker owns events (train.skew), and there were 2 "
    f"workers instead of 3"
)


OTHER_SETTINGS = f"{BEGINS_AGAIN}the checkpoint of the interrupted run is of other settings"
DAMAGED = f"{BEGINS_AGAIN}the checkpoint of the interrupted run is damaged"


def settings_of(workers: int, *, skewed: bool) -> TrainSettings:
    """Settings of a training, with or without events that workers own."""
    skew = {"dirichlet": 0.1} if skewed else None
    return TrainSettings.model_validate({"workers": workers, "skew": skew})


def checkpoints_of(folder: Path, settings: TrainSettings) -> CheckpointFolder:
    """The checkpoints of a training with these settings."""
    return CheckpointFolder(folder, settings_digest({}, settings))


def test_without_a_checkpoint_nothing_is_said(tmp_path: Path) -> None:
    settings = settings_of(2, skewed=False)

    assert describe_start(checkpoints_of(tmp_path, settings), settings) is None


@pytest.mark.parametrize(
    ("skewed", "workers", "sentence"),
    [
        (False, 2, CONTINUES),
        (False, 3, CONTINUES),
        (True, 2, CONTINUES),
        (True, 3, OTHER_WORKERS),
    ],
)
def test_another_number_of_workers_begins_again_if_each_owns_events(
    tmp_path: Path, skewed: bool, workers: int, sentence: str
) -> None:
    interrupted = settings_of(2, skewed=skewed)
    write_checkpoint(checkpoints_of(tmp_path, interrupted), Position(1, 0))
    settings = settings_of(workers, skewed=skewed)

    assert describe_start(checkpoints_of(tmp_path, settings), settings) == sentence


@pytest.mark.parametrize("name", ["rank-1.pt", "complete.json"])
def test_a_training_without_an_intact_checkpoint_begins_again(tmp_path: Path, name: str) -> None:
    settings = settings_of(2, skewed=False)
    checkpoints = checkpoints_of(tmp_path, settings)
    checkpoint = write_checkpoint(checkpoints, Position(1, 0))
    (checkpoint.folder / name).write_bytes(b"damaged")

    assert describe_start(checkpoints, settings) == DAMAGED


def test_damage_is_named_before_an_older_checkpoint_of_other_settings(tmp_path: Path) -> None:
    settings = settings_of(2, skewed=False)
    write_checkpoint(CheckpointFolder(tmp_path, "other"), Position(1, 0))
    checkpoints = checkpoints_of(tmp_path, settings)
    assert describe_start(checkpoints, settings) == OTHER_SETTINGS

    checkpoint = write_checkpoint(checkpoints, Position(1, 0))
    (checkpoint.folder / "complete.json").write_bytes(b"damaged")

    assert describe_start(checkpoints, settings) == DAMAGED


def test_a_training_that_the_interrupted_run_finished_is_not_continued(tmp_path: Path) -> None:
    settings = TrainSettings.model_validate({"workers": 2, "epochs": 3})
    checkpoints = checkpoints_of(tmp_path, settings)
    write_checkpoint(checkpoints, Position(3, 0))

    assert describe_start(checkpoints, settings) == "the interrupted run has finished this training"


def test_a_checkpoint_of_another_release_begins_again(tmp_path: Path) -> None:
    settings = settings_of(2, skewed=False)
    checkpoints = checkpoints_of(tmp_path, settings)
    path = write_checkpoint(checkpoints, Position(1, 0)).folder / "complete.json"
    description = json.loads(path.read_text()) | {"version": 0}
    path.write_text(json.dumps(with_seal(description)))

    reason = "another release wrote the checkpoint of the interrupted run"
    assert describe_start(checkpoints, settings) == BEGINS_AGAIN + reason


def test_a_training_of_fewer_epochs_than_the_checkpoint_begins_again(tmp_path: Path) -> None:
    settings = TrainSettings.model_validate({"workers": 2, "epochs": 3})
    checkpoints = checkpoints_of(tmp_path, settings)
    write_checkpoint(checkpoints, Position(4, 0))

    reason = "the interrupted run was one of more epochs"
    assert describe_start(checkpoints, settings) == BEGINS_AGAIN + reason
