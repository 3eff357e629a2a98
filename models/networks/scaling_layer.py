"""Feature scaling as the first layer of a network, so that a saved model takes raw features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Scaler(NamedTuple):
    """Parameters of `Standardize`: one mean and std per column, in the column's unit, from the training split."""

    mean: list[float]
    std: list[float]
    """Standard deviations, greater than 0; 1 for constant columns."""


class Standardize(nn.Module):
    """(x - mean) / std per column; mean and std are constants of the model, computed on the training split.

    Examples:
        >>> Standardize([10.0], [2.0])(torch.tensor([[14.0]]))
        tensor([[2.]])
    """

    mean: Tensor
    inverse_std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Double precision first, so that float32 and float64 models scale by the same numbers.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64).to(torch.get_default_dtype()))
        inverse = 1.0 / torch.tensor(std, dtype=torch.float64)
        self.register_buffer("inverse_std", inverse.to(torch.get_default_dtype()))

    def forward(self, columns: Tensor) -> Tensor:
        """Scale (..., num_columns) raw features."""
        return (columns - self.mean) * self.inverse_std
