"""CHOCO-SGD: neighbours exchange compressed differences of their models (Koloskova, Stich, Jaggi 2019, Algorithm 2)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.d_psgd import NeighbourAlgorithm, NeighbourSettings
from training.algorithms.method import Traits, algorithm
from training.transports.basics import Vector, is_finite


class ChocoSgdSettings(NeighbourSettings):
    """Exchange compressed differences of the parameters with all neighbours at every step."""

    name: Literal["choco-sgd"]
    fraction: float = Field(default=0.1, gt=0, le=1)
    """Part of the parameters that travel, those of largest magnitude (top-k); above 0 and at most 1."""
    gamma: float = Field(default=0.3, gt=0, le=1)
    """Step size of the consensus, above 0 and at most 1; the more stays behind, the smaller."""


def compress(values: Vector, fraction: float) -> Vector:
    """The message about the elements of largest magnitude: 4 bytes of index and one value each."""
    kept = max(1, math.ceil(fraction * values.size))
    rest = values.size - kept
    places = np.sort(
        np.argpartition(np.abs(values), rest)[rest:] if rest else np.arange(values.size)
    )
    return np.concatenate([places.astype(np.int32).view(np.uint8), values[places].view(np.uint8)])


def expand(message: Vector, like: Vector) -> Vector:
    """Q(v), which the message says: v at the elements of largest magnitude, and 0 elsewhere.

    Examples:
        >>> values = np.array([1, -3, 0, 2, -1], np.float32)
        >>> message = compress(values, 0.4)
        >>> message.nbytes, expand(message, values).tolist()
        (16, [0.0, -3.0, 0.0, 2.0, 0.0])
    """
    indices, values = np.split(message, [message.size // (4 + like.itemsize) * 4])
    expanded = np.zeros_like(like)
    expanded[indices.view(np.int32)] = values.view(like.dtype)
    return expanded


@algorithm("choco-sgd", ChocoSgdSettings, Traits(title="CHOCO-SGD", needs_others=True))
class ChocoSgd(NeighbourAlgorithm):
    """y_i = x_i - eta g_i; h_j <- h_j + Q(y_j - h_j) for all j; x_i+ = y_i + gamma sum_j w_ij (h_j - h_i).

    h_j is what all neighbours know of worker j, so that the error of the compression Q stays in the next difference. A
    worker keeps its own h_i and the sum of w_ij h_j. All h start as the first model of rank 0 instead of 0, since all
    workers start from it. With the fraction 1, gamma 1 makes it D-PSGD in this order of steps (adapt, then combine).

    Q is a contraction: |Q(v) - v|^2 <= (1 - fraction) |v|^2.

    A worker whose model is not finite sends the difference 0, and takes over the mean of what it knows of the others.
    """

    SCRATCH = ("_vector",)

    def __init__(self, settings: ChocoSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._gamma, self._fraction, self._vector = (
            settings.gamma,
            settings.fraction,
            self.model.empty(),
        )
        self._known, self._average = self.model.empty(), self.model.empty()

    @override
    async def start(self) -> None:
        self.model.read(self._vector)
        await self.transport.broadcast(self._vector)
        self._known[:] = self._average[:] = self._vector

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        known, average, (own, *given) = self._known, self._average, self.weights
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self.model.read(self._vector)
        finite = is_finite(self._vector)
        message = compress(self._vector - known if finite else np.zeros_like(known), self._fraction)
        exchange = self.begin_exchange(message)
        change = expand(message, known)
        known += change
        average += own * change
        for weight, theirs in zip(given, await exchange, strict=True):
            average += weight * expand(theirs, known)
        if finite:
            self.model.write(self._vector + self._gamma * (average - known))
        elif self.neighbours:
            self.model.write((average - own * known) / sum(given))
