"""Feature scaling as the first layer of a network, so that a saved model takes raw features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn


class Scaler(NamedTuple):
    """Parameters of `Standardize`, one number per column, from the training split."""

    mean: list[float]
    """Mean of each column, after the logarithm where there is one."""
    std: list[float]
    """Standard deviations, greater than 0; 1 for constant columns."""
    log_above: list[float] = []  # noqa: RUF012 - never changed
    """Sizes, in the column's unit, above which a column is scaled as its logarithm; 0 for a linear
    column. Empty if all are linear."""
    limit: float | None = None
    """Largest size of a scaled value; larger ones are cut to it. None if there is no limit."""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Read the scaler of a column of `scaler.json` (`features.scaling.scaler_json`)."""
        parameters = {name: fields[name] for name in cls._fields if name in fields}
        return cls(**parameters)


class Standardize(nn.Module):
    """Scales each column x to (y - mean) / std.

    y is x, or asinh(x / log_above) for a column with a heavy tail. All numbers are constants of the
    model, computed on the training split.
    """

    mean: Tensor
    inverse_std: Tensor
    unit: Tensor
    """Size above which a column is logarithmic, `Scaler.log_above`; 1 for a linear column."""
    is_logarithmic: Tensor
    """(num_columns,) whether a column is scaled as its logarithm."""

    def __init__(self, scaler: Scaler) -> None:
        super().__init__()
        self.limit = scaler.limit
        self.has_units = len(scaler.log_above) > 0
        """Whether some columns are scaled as their logarithm."""
        # Double precision first, so that float32 and float64 models scale by the same numbers.
        dtype = torch.get_default_dtype()
        mean = torch.tensor(scaler.mean, dtype=torch.float64)
        std = torch.tensor(scaler.std, dtype=torch.float64)
        self.register_buffer("mean", mean.to(dtype))
        self.register_buffer("inverse_std", (1.0 / std).to(dtype))
        # Not among the weights on disk: the specification of the network has them.
        units = [size if size > 0 else 1.0 for size in scaler.log_above]
        is_logarithmic = torch.tensor([size > 0 for size in scaler.log_above])
        self.register_buffer("unit", torch.tensor(units), persistent=False)
        self.register_buffer("is_logarithmic", is_logarithmic, persistent=False)

    def forward(self, columns: Tensor) -> Tensor:
        """Scale (..., num_columns) raw features."""
        if self.has_units:
            # asinh is linear near 0 and logarithmic far from it, with the sign of its argument.
            logarithms = torch.asinh(columns / self.unit)
            columns = torch.where(self.is_logarithmic, logarithms, columns)
        scaled = (columns - self.mean) * self.inverse_std
        if self.limit is None:
            return scaled
        return scaled.clamp(-self.limit, self.limit)
