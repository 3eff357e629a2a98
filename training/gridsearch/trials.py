"""The settings that a search tries, and the trainings that they need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

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
        """Its name.

        Examples:
            >>> Trial((50, 20, 10), 64, 0.001, 20).key
            '50-20-10_batch-64_rate-0.001_epochs-20'
        """
        return f"{SearchJob.of(self).key}_epochs-{self.epochs}"

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From `_asdict()` through JSON."""
        return cls(**{**content, "hidden": tuple(content["hidden"])})


class SearchJob(NamedTuple):
    """What trials that differ in their number of epochs only have in common: they are one training on all folds."""

    hidden: tuple[int, ...]
    batch_size: int
    learning_rate: float

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """The job of a trial."""
        return cls(trial.hidden, trial.batch_size, trial.learning_rate)

    @property
    def key(self) -> str:
        """Its name, which can be that of a file."""
        widths = "-".join(map(str, self.hidden))
        return f"{widths}_batch-{self.batch_size}_rate-{self.learning_rate:.15g}"


def all_trials(settings: GridSearchSettings) -> list[Trial]:
    """The whole grid.

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
    """What a search begins with: the grid, or some of it drawn without replacement; halving with few epochs."""
    trials = all_trials(settings)
    if settings.num_trials is not None and settings.num_trials < len(trials):
        chosen = random_stream(seed, "trials").choice(len(trials), settings.num_trials, replace=False)
        trials = [trials[place] for place in sorted(chosen.tolist())]
    if settings.search == "halving":
        epochs = rungs(len(trials), settings.epochs[0], settings.halving_factor)[0]
        trials = [trial._replace(epochs=epochs) for trial in trials]
    return trials


def rungs(num_trials: int, most_epochs: int, factor: int) -> list[int]:
    """Epochs of the rounds of successive halving, ascending (Jamieson and Talwalkar 2016).

    As many rounds as it takes until one trial is left; the last trains to `most_epochs`, each before it `factor` times
    less, and at least one.

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
    """Those of a round that go on, the best first; failed trials have no score and are not among them.

    Args:
        scores: Trials and their scores, higher is better.
        next_epochs: Of the next round.
        factor: One in so many goes on, and at least one.
    """
    ordered = sorted(scores, key=lambda each: each[1], reverse=True)
    kept = ordered[: max(1, len(ordered) // factor)]
    return [trial._replace(epochs=next_epochs) for trial, _ in kept]
