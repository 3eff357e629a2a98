"""Settings of the grid search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from training.effects import Needs, SettingsSection

PositiveFloat = Annotated[float, Field(gt=0)]


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
                or (max(search.epochs) > 1 and (search.num_trials or search.num_settings) >= search.halving_factor)
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
        """Number of settings of the whole grid."""
        widths = list(map(len, self.hidden))
        architectures = sum(math.prod(widths[:depth]) for depth in self.depths or [len(widths)])
        return architectures * len(self.batch_size) * len(self.learning_rate) * len(self.epochs)

    @model_validator(mode="after")
    def _axes_have_no_twins(self) -> Self:
        axes: dict[str, Sequence[float]] = {"batch_size": self.batch_size, "epochs": self.epochs}
        axes["learning_rate"] = self.learning_rate
        axes |= {f"hidden[{layer}]": widths for layer, widths in enumerate(self.hidden)}
        axes |= {"depths": self.depths or []}
        for name, values in axes.items():
            twins = sorted({value for value in values if values.count(value) > 1})
            if twins:
                raise ValueError(f"{name}: {twins} is given twice")
        return self

    @model_validator(mode="after")
    def _values_suit_each_other(self) -> Self:
        deepest = max(self.depths or [1])
        if deepest > len(self.hidden):
            raise ValueError(f"depths: {deepest} layers, but hidden has widths for {len(self.hidden)} only")
        if self.search == "random" and self.num_trials is None:
            raise ValueError("search: random needs num_trials")
        if self.search == "halving" and len(self.epochs) > 1:
            raise ValueError("search: halving raises the epochs itself; set epochs to one number, the highest")
        return self
