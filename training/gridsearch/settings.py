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
    """Perceptrons of high-level features to try; optimiser, schedule and seed come from `train`."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "num_trials",
            "search: random, and more settings in the grid",
            lambda settings: (
                settings.search == "random" and settings.num_trials < settings.num_settings
            ),
        ),
    )

    hidden: list[Annotated[list[PositiveInt], Field(min_length=1)]] = Field(
        default=[[50, 100, 150], [20, 50, 100], [10, 20, 50]], min_length=1
    )
    """Widths to try for each hidden layer; the default gives CERN's 27 architectures."""
    depths: list[PositiveInt] | None = None
    """Numbers of hidden layers to try; depth n uses the first n layers of `hidden`. Null: only the
    full depth."""
    batch_size: list[PositiveInt] = Field(default=[64, 100, 200], min_length=1)
    """Batch sizes to try: events per step, at least 1."""
    learning_rate: list[PositiveFloat] = Field(default=[1e-3], min_length=1)
    """Learning rates to try, each greater than 0."""
    epochs: list[PositiveInt] = Field(default=[20], min_length=1)
    """Numbers of epochs to try; each trial is scored at the epoch of the lowest mean validation
    loss of its folds."""
    folds: int = Field(default=5, ge=2)
    """Number of cross-validation folds of the training split, at least 2."""
    one_standard_error: bool = False
    """Whether the smallest network within one standard error of the best is chosen, instead of the
    best."""
    search: Literal["grid", "random"] = "grid"
    """Search method: `grid` tries all settings, `random` a random choice."""
    num_trials: PositiveInt | None = None
    """Number of randomly chosen settings, for `search: random`."""

    @property
    def searched_depths(self) -> list[int]:
        """Return the numbers of hidden layers to try."""
        return self.depths or [len(self.hidden)]

    @property
    def axes(self) -> tuple[Sequence[int], Sequence[float], Sequence[int]]:
        """Return the values to try of batch size, learning rate and number of epochs."""
        return self.batch_size, self.learning_rate, self.epochs

    @property
    def num_settings(self) -> int:
        """Return the number of settings of the whole grid.

        It is the number of architectures, summed over the depths, times those of all other values.
        Values that are listed twice count once.
        """
        num_widths = [len(set(widths)) for widths in self.hidden]
        depths = set(self.searched_depths)
        num_architectures = sum(math.prod(num_widths[:depth]) for depth in depths)
        axis_lengths = [len(set(axis)) for axis in self.axes]
        return num_architectures * math.prod(axis_lengths)

    @model_validator(mode="after")
    def _check_values_together(self) -> Self:
        """Raise an error if a depth has no widths, or a random search has no number of trials."""
        deepest = max(self.searched_depths)
        if deepest > len(self.hidden):
            raise ValueError(
                f"depths: {deepest} layers, but hidden has widths for {len(self.hidden)} only"
            )
        if self.search == "random" and self.num_trials is None:
            raise ValueError("search: random needs num_trials")
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
        """Read a setting that `save` wrote."""
        try:
            trial = cls(**json.loads(path.read_text(encoding="utf-8")))
            return trial._replace(hidden=tuple(trial.hidden))
        except (OSError, ValueError, TypeError) as cause:
            raise TrainingError(
                f"{path} holds no result of a grid search ({cause}). "
                f"Run `python -m pipeline gridsearch --force`."
            ) from cause

    def applied_to(
        self, model: NetworkSettings, train: TrainSettings
    ) -> tuple[NetworkSettings, TrainSettings]:
        """Return settings of network and training with the values of this trial; all others stay.

        The batch of the search is the batch of one optimiser step. Workers that average their
        gradients share it; otherwise each worker has the whole batch size.

        Examples:
            >>> from models.networks.hlf_settings import HlfSettings
            >>> best = Trial((8, 4), 64, 0.01, 20)
            >>> ar_sgd = TrainSettings(algorithm="ar-sgd", workers=2)
            >>> _, settings = best.applied_to(HlfSettings(), ar_sgd)
            >>> settings.batch_size, settings.learning_rate, settings.effective_learning_rate
            (32, 0.01, 0.01)
        """
        workers_per_batch = train.workers if train.traits.linear_rate else 1
        # The class of the network is not named here. Otherwise a change of its code would train all
        # other networks again.
        network = model.model_copy(update={"hidden": list(self.hidden), "from_gridsearch": False})
        training = train.model_copy(
            update={
                "batch_size": max(1, self.batch_size // workers_per_batch),
                "learning_rate": self.learning_rate,
                "epochs": self.epochs,
                # The rate belongs to this batch. The linear rule would multiply it by the number of
                # workers.
                "scale_learning_rate": False,
            }
        )
        return network, training


def all_trials(settings: GridSearchSettings) -> list[Trial]:
    """List all trials of the grid, each once, however often the config lists a value.

    Examples:
        >>> len(all_trials(GridSearchSettings()))
        81
        >>> small = GridSearchSettings(hidden=[[4, 8], [2]], depths=[1, 2], batch_size=[16])
        >>> [trial.hidden for trial in all_trials(small)]
        [(4,), (8,), (4, 2), (8, 2)]
    """
    architectures: list[tuple[int, ...]] = []
    for depth in settings.searched_depths:
        architectures += itertools.product(*settings.hidden[:depth])
    grid = itertools.product(architectures, *settings.axes)
    trials = [Trial(*values) for values in grid]
    # The keys of a dict are unique and hold the order.
    return list(dict.fromkeys(trials))


def draw_trials(settings: GridSearchSettings, *, seed: int) -> list[Trial]:
    """Return the trials of a search: the whole grid, or a random choice, in the grid's order."""
    trials = all_trials(settings)
    if settings.num_trials is None:
        return trials
    random = random_stream(seed, "trials")
    drawn = random.choice(len(trials), settings.num_trials, replace=False)
    return [trials[index] for index in sorted(drawn.tolist())]
