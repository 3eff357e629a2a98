"""CHOCO-SGD: neighbours exchange compressed differences of their models (Koloskova, Stich, Jaggi 2019, Algorithm 2)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.compression import CompressionName, make_compression
from training.algorithms.method import Traits, algorithm
from training.algorithms.neighbours import NeighbourAlgorithm, NeighbourSettings
from training.effects import Needs
from training.transports.basics import is_finite


class ChocoSgdSettings(NeighbourSettings):
    """Exchange compressed differences of the parameters with all neighbours at every step."""

    name: Literal["choco-sgd"]
    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs("fraction", "compression: top-k", lambda chosen: chosen.compression is CompressionName.TOP_K),
    )
    compression: CompressionName = CompressionName.TOP_K
    """Compression of the differences: `top-k`, `sign`, or `none`."""
    fraction: float = Field(default=0.1, gt=0, le=1)
    """Part of the parameters that `top-k` sends, above 0 and at most 1."""
    gamma: float = Field(default=0.3, gt=0, le=1)
    """Step size of the consensus, above 0 and at most 1; the more a compression leaves out, the smaller."""


@algorithm("choco-sgd", ChocoSgdSettings, Traits(title="CHOCO-SGD"))
class ChocoSgd(NeighbourAlgorithm):
    """y_i = x_i - eta g_i; h_j <- h_j + Q(y_j - h_j) for all j; x_i+ = y_i + gamma sum_j w_ij (h_j - h_i).

    h_j is what all neighbours know of worker j, so that the error of the compression Q stays in the next difference. A
    worker keeps its own h_i and the sum of w_ij h_j. All h start as the first model of
    rank 0 instead of 0, since all workers start from it. Without compression, gamma 1 makes it D-PSGD in this order of
    the steps (adapt, then combine).

    A worker whose model is not finite sends the difference 0, and takes over the mean of what it knows of the others.
    """

    STATE_KEYS = ("_known", "_average")

    def __init__(self, settings: ChocoSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._gamma, self._vector = settings.gamma, self.model.empty()
        self._compression = make_compression(settings.compression, self._vector, fraction=settings.fraction)
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
        message = self._compression.compress(self._vector - known if finite else np.zeros_like(known))
        exchange = self.begin_exchange(message)
        change = self._compression.expand(message)
        known += change
        average += own * change
        for weight, theirs in zip(given, await exchange, strict=True):
            average += weight * self._compression.expand(theirs)
        if finite:
            self.model.write(self._vector + self._gamma * (average - known))
        elif self.neighbours:
            self.model.write((average - own * known) / sum(given))
