"""Weighted sums of losses and correct predictions, which add up over batches and workers."""

from __future__ import annotations

from operator import add
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.transports.basics import Vector
from training.transports.transport import Transport


class Sums(NamedTuple):
    """Weighted sums over events, which add up over batches and ranks."""

    loss: float = 0.0
    weight: float = 0.0
    correct: float = 0.0
    samples: int = 0

    @classmethod
    def of(cls, numbers: Vector) -> Self:
        """From an array of these four numbers."""
        loss, weight, correct, samples = numbers.tolist()
        return cls(loss, weight, correct, round(samples))

    def plus(self, other: Sums) -> Sums:
        """Sums over both sets of events."""
        return Sums(*map(add, self, other))

    @property
    def mean_loss(self) -> float:
        """Weighted mean loss; NaN without events."""
        return self.loss / self.weight if self.weight else float("nan")

    @property
    def accuracy(self) -> float:
        """Weighted share of correct predictions; NaN without events."""
        return self.correct / self.weight if self.weight else float("nan")


def weighted_losses(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy of each event, (num_events,)."""
    return weights * functional.cross_entropy(logits, labels, reduction="none")


def sums_of(logits: Tensor, labels: Tensor, weights: Tensor) -> Sums:
    """Compute the losses of some events, and the sums over them."""
    losses = weighted_losses(logits, labels, weights)
    correct = (logits.argmax(dim=1) == labels) * weights
    totals = torch.stack([values.double().sum() for values in (losses, weights, correct)])
    loss, weight, right = totals.tolist()
    return Sums(loss, weight, right, len(labels))


async def reduce_sums(sums: Sums, transport: Transport) -> Sums:
    """The sums over the events of all workers."""
    vector = np.array(sums, dtype=np.float64)
    await transport.all_reduce_sum(vector)
    return Sums.of(vector)
