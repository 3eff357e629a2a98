"""Settings of the grid search."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hep_core.random_streams import random_stream
from hep_core.settings_section import Needs, SettingsSection
from models.networks.network_settings import NetworkSettings
from training.errors import TrainingError
from training.settings import TrainSettings


class GridSearchSettings(SettingsSection):
    """The perceptrons on high-level features to try, and the search; optimiser, schedule and seed come from `train`."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "num_trials",
            "search: random or halving, and more settings in the grid",
            lambda search: search.search != "grid" and search.num_trials < search.num_settings,
        ),
        Needs(
            "search",
            "two rounds: epochs above 1, and at least halving_factor settings",
            lambda search: (
                search.search != "halving"
                or (
                    max(search.epochs) > 1
                    and (search.num_trials or search.num_settings) >= search.halving_factor
                )
            ),
        ),
        Needs("halving_factor", "search: halving", lambda search: search.search == "halving"),
    )

    hidden: list[Annotated[list[PositiveInt], Field(min_length=1)]] = Field(
        default=[[50, 100, 150], [20, 50, 100], [10, 20, 50]], min_length=1
    )
    """Widths to try for each hidden layer; the default gives CERN's 27 architectures."""
    depths: list[PositiveInt] | None = None
    """Numbers of hidden layers to try; depth n uses the first n layers of `hidden`. Null: only the full depth."""
    batch_size: list[PositiveInt] = Field(default=[64, 100, 200], min_length=1)
    """Batch sizes to try: events per step, at least 1."""
    learning_rate: list[PositiveFloat] = Field(default=[1e-3], min_length=1)
    """Learning rates to try, each greater than 0."""
    epochs: list[PositiveInt] = Field(default=[20], min_length=1)
    """Numbers of epochs to try; each trial is scored at the epoch of the lowest mean validation loss of its folds."""
    folds: int = Field(default=5, ge=2)
    """Number of cross-validation folds of the training split, at least 2."""
    one_standard_error: bool = False
    """Whether the smallest network within one standard error of the best is chosen, instead of the best."""
    search: Literal["grid", "random", "halving"] = "grid"
    """Search method: `grid` tries all settings, `random` a random choice, `halving` successive halving."""
    num_trials: PositiveInt | None = None
    """Number of randomly chosen settings, for `random` and for the first round of `halving` (null there: all)."""
    halving_factor: int = Field(default=3, ge=2)
    """Successive halving: each round keeps 1/factor of the trials and multiplies their epochs by factor."""

    @property
    def num_settings(self) -> int:
        """Number of settings of the whole grid; values that are listed twice count once."""
        widths = [len(set(layer)) for layer in self.hidden]
        architectures = sum(
            math.prod(widths[:depth]) for depth in set(self.depths or [len(widths)])
        )
        return math.prod([architectures, *(len(set(axis)) for axis in self.axes)])

    @property
    def axes(self) -> tuple[Sequence[int], Sequence[float], Sequence[int]]:
        """The values to try beside the layers."""
        return self.batch_size, self.learning_rate, self.epochs

    @model_validator(mode="after")
    def _values_suit_each_other(self) -> Self:
        deepest = max(self.depths or [1])
        if deepest > len(self.hidden):
            raise ValueError(
                f"depths: {deepest} layers, but hidden has widths for {len(self.hidden)} only"
            )
        if self.search == "random" and self.num_trials is None:
            raise ValueError("search: random needs num_trials")
        if self.search == "halving" and len(self.epochs) > 1:
            raise ValueError(
                "search: halving raises the epochs itself; set epochs to one number, the highest"
            )
        return self


class Trial(NamedTuple):
    """One setting of the grid."""

    hidden: tuple[int, ...]
    """Widths of the hidden layers."""
    batch_size: int
    learning_rate: float
    epochs: int

    @property
    def key(self) -> str:
        """Name of the trial, also valid as a file name.

        Examples:
            >>> Trial((50, 20, 10), 64, 0.001, 20).key
            '50-20-10_batch-64_rate-0.001_epochs-20'
        """
        widths = "-".join(map(str, self.hidden))
        return (
            f"{widths}_batch-{self.batch_size}_rate-{self.learning_rate:.15g}_epochs-{self.epochs}"
        )

    def save(self, path: Path) -> None:
        """Write the setting as JSON."""
        path.write_text(json.dumps(self._asdict(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
            return found._replace(hidden=tuple(found.hidden))
        except (OSError, ValueError, TypeError) as cause:
            raise TrainingError(
                f"{path} holds no result of a grid search ({cause}). Run `python -m pipeline gridsearch --force`."
            ) from cause

    def applied_to(
        self, model: NetworkSettings, train: TrainSettings
    ) -> tuple[NetworkSettings, TrainSettings]:
        """Settings of network and training with the best values of the search; all other values stay.

        The batch of the search is the batch of one optimiser step. Workers that average their gradients share it; else
        each worker has the whole batch size.

        Examples:
            >>> from models.networks.hlf_settings import HlfSettings
            >>> best = Trial((8, 4), 64, 0.01, 20)
            >>> _, settings = best.applied_to(HlfSettings(), TrainSettings(algorithm="ar-sgd", workers=2))
            >>> settings.batch_size, settings.learning_rate, settings.effective_learning_rate
            (32, 0.01, 0.01)
        """
        sharing = train.workers if train.traits.linear_rate else 1
        changes = {
            "batch_size": max(1, self.batch_size // sharing),
            "learning_rate": self.learning_rate,
            "epochs": self.epochs,
            # The rate was searched with this batch; the linear rule would multiply it by the number of workers.
            "scale_learning_rate": False,
        }
        # Without the class of the network: a change of its code would train all other networks again.
        return model.model_copy(
            update={"hidden": [*self.hidden], "from_gridsearch": False}
        ), train.model_copy(update=changes)


def all_trials(settings: GridSearchSettings) -> list[Trial]:
    """All trials of the grid, each once, however often the config lists a value.

    Examples:
        >>> len(all_trials(GridSearchSettings()))
        81
        >>> small = GridSearchSettings(hidden=[[4, 8], [2]], depths=[1, 2], batch_size=[16])
        >>> [trial.hidden for trial in all_trials(small)]
        [(4,), (8,), (4, 2), (8, 2)]
    """
    depths = settings.depths or [len(settings.hidden)]
    architectures = [
        hidden for depth in depths for hidden in itertools.product(*settings.hidden[:depth])
    ]
    grid = itertools.product(architectures, *settings.axes)
    return list(dict.fromkeys(Trial(*values) for values in grid))


def first_trials(settings: GridSearchSettings, *, seed: int) -> list[Trial]:
    """The first trials of a search: the grid, or a random part of it; for halving with the fewest epochs."""
    trials = all_trials(settings)
    if settings.num_trials is not None:
        chosen = random_stream(seed, "trials").choice(
            len(trials), settings.num_trials, replace=False
        )
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
    while (num_trials := num_trials // factor) and found[0] > 1:
        found.insert(0, max(1, round(found[0] / factor)))
    return found


def promoted(scores: Sequence[tuple[Trial, float]], next_epochs: int, factor: int) -> list[Trial]:
    """The trials of a round that enter the next one, the best first; failed trials have no score.

    `scores`: trials and their scores; higher is better. `factor`: 1/factor of the trials enters the next round, at
    least one.
    """
    ordered = sorted(scores, key=lambda each: each[1], reverse=True)
    kept = ordered[: max(1, len(ordered) // factor)]
    return [trial._replace(epochs=next_epochs) for trial, _ in kept]
