"""D-PSGD: averages the models of neighbours at every step, during the gradient (Migliorini 2020, Algorithm 2)."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Worker
from training.algorithms.method import MethodSettings, Traits, algorithm
from training.topology import TopologyName, shared_topology
from training.transports.transport import is_finite


class DPsgdSettings(MethodSettings):
    """Average parameters with all neighbours at every step."""

    name: Literal["d-psgd"]
    topology: TopologyName = TopologyName.RING
    """Communication graph."""


@algorithm("d-psgd", DPsgdSettings, Traits(title="D-PSGD"))
class DPsgd(Algorithm):
    """x_i <- sum_j w_ij x_j - gamma * g_i(x_i): the gradient is taken at x_i, before the average.

    The models travel while the gradient is computed (lines 3 and 4 of the algorithm). Weight decay acts on the average,
    since the base optimiser takes its step from there.
    """

    def __init__(self, settings: DPsgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        topology = shared_topology(settings.topology, self.transport.world_size)
        self._neighbours = topology.neighbours[self.transport.rank]
        self._weights = topology.weights[self.transport.rank]
        self._sent, self._mixed = self.model.empty(), self.model.empty()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        self.model.read(self._sent)
        exchange = self.transport.begin_exchange(self._sent, self._neighbours)
        has_gradient = await self.has_gradient(compute_gradient, num_samples)
        theirs = await exchange
        # A model that is not finite stays with its worker, which takes over the mean of its neighbours.
        pairs = zip(self._weights, (self._sent, *theirs), strict=True)
        finite = [(weight, vector) for weight, vector in pairs if is_finite(vector)]
        total = sum(weight for weight, _ in finite) if len(finite) <= len(theirs) else 1.0
        if finite:
            self._mixed.fill(0)
            for weight, vector in finite:
                self._mixed += weight / total * vector
            self.model.write(self._mixed)
        if has_gradient:
            self.optimizer.step()
