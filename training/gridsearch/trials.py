"""The trials of a search, and the trainings that they need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Self

from training.gridsearch.settings import GridSearchSettings
from training.random_streams import random_stream


class Trial(NamedTuple):
    """One setting of the grid."""

    hidden: tuple[int, ...]
    """Widths of the hidden layers."""
    batch_size: int
    learning_rate: float
    epochs: int

    @property
    def key(self) -> str:
        """Name of the trial.

        Examples:
            >>> Trial((50, 20, 10), 64, 0.001, 20).key
            '50-20-10_batch-64_rate-0.001_epochs-20'
        """
        return f"{SearchJob.of(self).key}_epochs-{self.epochs}"


class SearchJob(NamedTuple):
    """One training on all folds, for all trials that differ only in their number of epochs."""

    hidden: tuple[int, ...]
    batch_size: int
    learning_rate: float
    epochs: int | None = None
    """Number of epochs, if the training is for trials of this number only."""

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """The job of a trial."""
        return cls(trial.hidden, trial.batch_size, trial.learning_rate)

    @property
    def key(self) -> str:
        """Name of the job, also valid as a file name."""
        widths = "-".join(map(str, self.hidden))
        ends = "" if self.epochs is None else f"_ends-{self.epochs}"
        return f"{widths}_batch-{self.batch_size}_rate-{self.learning_rate:.15g}{ends}"


def all_trials(settings: GridSearchSettings) -> list[Trial]:
    """All trials of the grid.

    Examples:
        >>> len(all_trials(GridSearchSettings()))
        81
        >>> small = GridSearchSettings(hidden=[[4, 8], [2]], depths=[1, 2], batch_size=[16])
        >>> [trial.hidden for trial in all_trials(small)]
        [(4,), (8,), (4, 2), (8, 2)]
    """
    depths = settings.depths or [len(settings.hidden)]
    architectures = [hidden for depth in depths for hidden in itertools.product(*settings.hidden[:depth])]
    axes = (architectures, settings.batch_size, settings.learning_rate, settings.epochs)
    return [Trial(*values) for values in itertools.product(*axes)]


def first_trials(settings: GridSearchSettings, *, seed: int) -> list[Trial]:
    """The first trials of a search: the grid, or a random part of it; for halving with the fewest epochs."""
    trials = all_trials(settings)
    if settings.num_trials is not None:
        chosen = random_stream(seed, "trials").choice(len(trials), settings.num_trials, replace=False)
        trials = [trials[place] for place in sorted(chosen.tolist())]
    if settings.search == "halving":
        epochs = rungs(len(trials), settings.epochs[0], settings.halving_factor)[0]
        trials = [trial._replace(epochs=epochs) for trial in trials]
    return trials


def rungs(num_trials: int, most_epochs: int, factor: int) -> list[int]:
    """Epochs of the rounds of successive halving, ascending (Jamieson and Talwalkar 2016).

    The number of rounds leaves one trial at the end. The last round trains to `most_epochs`, each earlier one to
    1/`factor` of the next, and at least one epoch.

    Examples:
        >>> rungs(27, 27, 3)
        [1, 3, 9, 27]
        >>> rungs(10, 20, 3)
        [2, 7, 20]
    """
    found = [most_epochs]
    left = num_trials
    while left // factor >= 1 and found[0] > 1 and left > 1:
        left //= factor
        found.insert(0, max(1, round(found[0] / factor)))
    return found


def promoted(scores: Sequence[tuple[Trial, float]], next_epochs: int, factor: int) -> list[Trial]:
    """The trials of a round that enter the next one, the best first; failed trials have no score.

    Args:
        scores: Trials and their scores; higher is better.
        next_epochs: Number of epochs of the next round.
        factor: 1/factor of the trials enters the next round, at least one.
    """
    ordered = sorted(scores, key=lambda each: each[1], reverse=True)
    kept = ordered[: max(1, len(ordered) // factor)]
    return [trial._replace(epochs=next_epochs) for trial, _ in kept]
