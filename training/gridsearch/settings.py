"""What a user may choose about the grid search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

PositiveFloat = Annotated[float, Field(gt=0)]


class GridSearchSettings(BaseModel):
    """Which perceptrons on high-level features are tried, and how; optimiser and seed come from `train`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hidden: list[Annotated[list[PositiveInt], Field(min_length=1)]] = Field(
        default=[[50, 100, 150], [20, 50, 100], [10, 20, 50]], min_length=1
    )
    """For each hidden layer the widths to try; these are CERN's 27 architectures."""
    depths: list[PositiveInt] | None = None
    """Numbers of hidden layers to try: so many of the first layers of `hidden`. By default all of them."""
    batch_size: list[PositiveInt] = Field(default=[64, 100, 200], min_length=1)
    """Events per step."""
    learning_rate: list[PositiveFloat] = Field(default=[1e-3], min_length=1)
    """Learning rates."""
    epochs: list[PositiveInt] = Field(default=[20], min_length=1)
    """Passes over the events; of each, the epoch of the lowest validation loss up to there counts."""
    folds: int = Field(default=5, ge=2)
    """Parts that the training split is divided into; each is once what the others are judged by."""
    patience: PositiveInt | None = None
    """A training stops after so many epochs without a lower validation loss; not set, never."""
    search: Literal["grid", "random", "halving"] = "grid"
    """All settings; `num_trials` of them at random; or successive halving from those."""
    num_trials: PositiveInt | None = None
    """Of `random`, and of `halving` to start with (there by default: all)."""
    halving_factor: int = Field(default=3, ge=2)
    """Of `halving`: one in so many goes on, with so many times the epochs, up to the last of `epochs`."""

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
        if self.search == "grid" and self.num_trials is not None:
            raise ValueError("num_trials means nothing for search: grid; use random or halving")
        if self.search == "halving" and len(self.epochs) > 1:
            raise ValueError("search: halving raises the epochs by itself: give epochs the highest number only")
        return self
