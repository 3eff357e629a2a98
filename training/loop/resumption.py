"""Whether a run resumes from a checkpoint, and why not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from training.loop.checkpoints import VERSION, CheckpointFolder
from training.readers.units import Position
from training.settings import TrainSettings

#: Settings, in addition to those of speed, that may differ between the run that writes and the run
#: that resumes; see `settings_digest`. The stage `train` is stricter: it resumes with the settings
#: of its manifest only, which all epochs of a version have.
_FREE: Final = frozenset({"workers", "epochs", "device"})


def describe_start(checkpoints: CheckpointFolder, settings: TrainSettings) -> str | None:
    """Return whether a run continues an interrupted one, and why not; None if there is none.

    `checkpoints`: those in the folder of the run, with the digest of its settings.
    """
    end = Position(settings.epochs, 0)
    latest = checkpoints.latest(end=end)
    if latest is None:
        reason = _reason_to_begin_again(checkpoints, settings, end)
        return None if reason is None else f"training begins again: {reason}"
    if latest.position == end:
        return "the interrupted run has finished this training"
    return "training continues from the checkpoint of an interrupted run"


def _reason_to_begin_again(
    checkpoints: CheckpointFolder, settings: TrainSettings, end: Position
) -> str | None:
    """Return why no checkpoint is of use, by damage or the newest one; None if there is none."""
    if checkpoints.describe_damage(end=end):
        return "the checkpoint of the interrupted run is damaged"
    descriptions = checkpoints.descriptions()
    if not descriptions:
        return None
    newest = descriptions[0]
    if newest.version != VERSION:
        return "another release wrote the checkpoint of the interrupted run"
    if settings.skew is not None and newest.world_size != settings.workers:
        return (
            f"of the interrupted run each worker owns events (train.skew), and there were "
            f"{newest.world_size} workers instead of {settings.workers}"
        )
    if Position(newest.epoch, newest.step) > end:
        return "the interrupted run was one of more epochs"
    return "the checkpoint of the interrupted run is of other settings"


def settings_digest(workload: Mapping[str, Any], train: TrainSettings) -> str:
    """Return a digest of what a checkpoint depends on: the workload, and most settings.

    It leaves out the settings of speed, and `device`, `workers` and `epochs`: a run may resume with
    other values of these. `workers` counts with unequal data, and `epochs` with a learning rate
    that falls until the end of the run.

    Returns:
        16 hexadecimal digits.
    """
    # With unequal data, each number of workers divides the events in another way. Then a run must
    # resume with the same number, since other workers cannot divide the rest of an epoch.
    free = _FREE if train.skew is None else _FREE - {"workers"}
    if train.schedule.depends_on_epochs:
        free -= {"epochs"}
    dependencies = {"workload": workload, "train": train.result_items(exclude=free)}
    text = json.dumps(dependencies, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
