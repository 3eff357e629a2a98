"""The workload `surface`: a function of two parameters in place of a loss, and noise in place of events."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from hep_core.random_streams import random_stream
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.readers.sharding import even_parts
from training.settings import TrainSettings
from training.workloads.workload import Split, Workload, network_dtype

#: Rows of noise, in groups that many numbers of workers divide; a single row without noise validates and tests.
_ROWS: Final = 240
#: The starts of the parameters: the gradient is neither tiny nor of many thousands there.
_LOWEST, _HIGHEST = (1.0, -1.5), (4.0, 0.5)
#: Keeps the function above 0, where it has a logarithm.
_ABOVE: Final = 1e-6


class Beale(nn.Module):
    """Beale's function, as a network whose cross-entropy for the class 0 it is.

    Its least value, 0, lies at (3, 0.5). An event adds noise to the gradient and nothing to the value.
    """

    def __init__(self) -> None:
        super().__init__()
        low, high = torch.tensor(_LOWEST), torch.tensor(_HIGHEST)
        self.weights = nn.Parameter(low + (high - low) * torch.rand(2))

    def forward(self, noise: Tensor) -> Tensor:
        """Logits (num_events, 2) of rows of noise (num_events, 2)."""
        x, y = self.weights[0], self.weights[1]
        value = (
            (1.5 - x + x * y) ** 2
            + (2.25 - x + x * y**2) ** 2
            + (2.625 - x + x * y**3) ** 2
            + _ABOVE
        )
        loss = value + (noise * (self.weights - self.weights.detach())).sum(dim=1)
        # log(1 + exp(z)) is the loss.
        return torch.stack([torch.zeros_like(loss), loss + torch.log(-torch.expm1(-loss))], dim=1)


class Surface(Workload):
    """Rows of noise, with this variance of each component."""

    def __init__(self, noise: float) -> None:
        self._noise = noise

    @override
    def group_rows(self, split: Split) -> list[int]:
        return even_parts(_ROWS, _ROWS) if split == "train" else [1]

    @override
    def network(self) -> nn.Module:
        return Beale()

    @override
    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        groups, dtype = self.group_rows(split), network_dtype(settings)
        values = np.zeros((sum(groups), 2))
        if split == "train":
            values = random_stream(settings.seed, "noise").normal(
                0, np.sqrt(self._noise), values.shape
            )
        labels = torch.zeros(len(values), dtype=torch.int64)
        rows = Rows(
            (torch.as_tensor(values, dtype=dtype),), labels, torch.ones(len(values), dtype=dtype)
        )
        return MemoryRows(rows, settings.seed, groups, mixes_groups=True)
