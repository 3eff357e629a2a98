"""What a search is, and the results of its trainings on disk. No torch: the driver needs none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from hep_core.atomic_files import new_file
from hep_core.integrity import SEAL, has_seal, with_seal
from training.gridsearch.settings import GridSearchSettings, Trial
from training.settings import TrainSettings


class Curves(NamedTuple):
    """Curves of a training, one number per epoch."""

    train_loss: list[float]
    """Mean loss over the epoch, during the updates."""
    val_loss: list[float]
    val_accuracy: list[float]
    """Accuracy with event and class weights, like the losses."""


class Search(NamedTuple):
    """Dataset and settings common to all jobs of a search."""

    dataset: Path
    """Folder of the features; every task must reach it."""
    settings: GridSearchSettings
    train: TrainSettings
    """Settings of optimiser, schedule, weight decay and seed."""

    def plan_trainings(self, trials: Sequence[Trial]) -> dict[Trial, Trial]:
        """Return the training of each trial, which is a trial too.

        Trials that differ only in their number of epochs share the longest training, since a
        shorter one is its beginning. With a cosine schedule it is not, as the rate then depends on
        the last epoch.
        """
        if self.train.schedule.decay == "cosine":
            return {trial: trial for trial in trials}
        # The keys have 0 epochs, so that trials that share a training have the same key.
        longest: dict[Trial, Trial] = {}
        for trial in sorted(trials, key=lambda trial: trial.epochs):
            longest[trial._replace(epochs=0)] = trial
        return {trial: longest[trial._replace(epochs=0)] for trial in trials}


class JobResult(NamedTuple):
    """The result of a training on all folds."""

    trial: Trial
    num_parameters: int
    folds: list[Curves]
    """Curves of each fold; empty if the job failed."""
    seconds: float
    error: str
    """The error if the job failed, else empty."""

    def save(self, folder: Path) -> None:
        """Write the result into its own file, with a checksum."""
        content = {
            **self._asdict(),
            "trial": self.trial._asdict(),
            "folds": [curves._asdict() for curves in self.folds],
        }
        with new_file(folder / f"{self.trial.key}.json") as unfinished:
            unfinished.write_text(json.dumps(with_seal(content)), encoding="utf-8")


def load_result(folder: Path, trial: Trial) -> JobResult | None:
    """Read the result of an earlier training that succeeded; None if there is none.

    A file that a power cut left empty, or that is damaged, counts as none.
    """
    try:
        content = json.loads((folder / f"{trial.key}.json").read_text(encoding="utf-8"))
        if not has_seal(content):
            return None
        del content[SEAL]
        result = TypeAdapter(JobResult).validate_python(content)
    except (FileNotFoundError, ValueError):
        return None
    return None if result.error else result
