"""D-PSGD: averages the models of neighbours at every step, during the gradient (Migliorini 2020, Algorithm 2)."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.method import Traits, algorithm
from training.algorithms.neighbours import NeighbourAlgorithm, NeighbourSettings, mix


class DPsgdSettings(NeighbourSettings):
    """Average parameters with all neighbours at every step."""

    name: Literal["d-psgd"]


@algorithm("d-psgd", DPsgdSettings, Traits(title="D-PSGD"))
class DPsgd(NeighbourAlgorithm):
    """x_i <- sum_j w_ij x_j - gamma * g_i(x_i): the gradient is taken at x_i, before the average.

    The models travel while the gradient is computed (lines 3 and 4 of the algorithm). Weight decay acts on the average,
    since the base optimiser takes its step from there.
    """

    def __init__(self, settings: DPsgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._sent, self._mixed = self.model.empty(), self.model.empty()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        self.model.read(self._sent)
        exchange = self.begin_exchange(self._sent)
        has_gradient = await self.has_gradient(compute_gradient, num_samples)
        if mix(self.weights, (self._sent, *await exchange), out=self._mixed):
            self.model.write(self._mixed)
        if has_gradient:
            self.optimizer.step()
