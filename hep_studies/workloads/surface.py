"""The workload `surface`: a function of two parameters as loss, and noise as events."""

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

#: Number of rows of noise, which many numbers of workers divide. A single row without noise
#: validates and tests.
_NUM_ROWS: Final = 240
#: Range of the starts of the parameters: the gradient is neither tiny nor of many thousands there.
_LOWEST, _HIGHEST = (1.0, -1.5), (4.0, 0.5)
#: Keeps the function above 0, where it has a logarithm.
_OFFSET: Final = 1e-6


class Beale(nn.Module):
    """A network whose loss is Beale's function of its two parameters.

    The training loop only knows cross-entropy. So the network returns logits whose cross-entropy
    for the class 0 is the function. The minimum, 0, lies at (3, 0.5). An event adds noise to the
    gradient and nothing to the value. The start is random.
    """

    def __init__(self) -> None:
        super().__init__()
        low, high = torch.tensor(_LOWEST), torch.tensor(_HIGHEST)
        self.weights = nn.Parameter(low + (high - low) * torch.rand(2))

    def forward(self, noise: Tensor) -> Tensor:
        """Return logits (num_events, 2) of rows of noise (num_events, 2)."""
        x, y = self.weights[0], self.weights[1]
        first = (1.5 - x + x * y) ** 2
        second = (2.25 - x + x * y**2) ** 2
        third = (2.625 - x + x * y**3) ** 2
        value = first + second + third + _OFFSET
        # The noise has the value 0, and a gradient.
        noise_term = (noise * (self.weights - self.weights.detach())).sum(dim=1)
        loss = value + noise_term
        # The cross-entropy of the logits (0, z) for class 0 is log(1 + exp(z)). It equals the loss
        # for z = log(exp(loss) - 1), here in a form that does not overflow.
        z = loss + torch.log(-torch.expm1(-loss))
        return torch.stack([torch.zeros_like(loss), z], dim=1)


class Surface(Workload):
    """The workload of Beale's function: an event is noise that is added to the gradient.

    `noise`: variance of each of its two components. Validation and test have one row without noise.
    """

    def __init__(self, noise: float) -> None:
        self._noise = noise

    @override
    def group_rows(self, split: Split) -> list[int]:
        """Return the number of rows in each row group: groups of one row."""
        return even_parts(_NUM_ROWS, _NUM_ROWS) if split == "train" else [1]

    @override
    def network(self) -> nn.Module:
        return Beale()

    @override
    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        """Return rows of noise (num_rows, 2), of class 0 and weight 1; the seed gives the noise.

        Validation and test have one row of 0.
        """
        group_rows = self.group_rows(split)
        num_rows = sum(group_rows)
        dtype = network_dtype(settings)
        noise = np.zeros((num_rows, 2))
        if split == "train":
            rng = random_stream(settings.seed, "noise")
            noise = rng.normal(0, np.sqrt(self._noise), noise.shape)
        labels = torch.zeros(num_rows, dtype=torch.int64)
        weights = torch.ones(num_rows, dtype=dtype)
        rows = Rows((torch.as_tensor(noise, dtype=dtype),), labels, weights)
        return MemoryRows(rows, settings.seed, group_rows, mixes_groups=True)
