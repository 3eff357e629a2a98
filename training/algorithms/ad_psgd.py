"""AD-PSGD: gradients at a snapshot of the model, with concurrent pairwise averages (Migliorini 2020, section 2.2)."""

from __future__ import annotations

from torch.optim import Optimizer
from typing_extensions import override

from training.algorithms.base import ComputeGradient, subtract
from training.algorithms.gossip import GossipAlgorithm, Partners
from training.flat_model import VectorModel
from training.transports.transport import Transport


class AdPsgd(GossipAlgorithm):
    """x_i <- average - gamma * g_i(snapshot): wait-free, with one average begun at every step.

    The thesis drops the learning rate gamma from its formula; the paper (Lian et al. 2017) has it. The optimiser's
    change at the snapshot is added to the shared vector as a difference, so that concurrent averages are kept. Their
    number is the staleness of the step.

    Args:
        model: See `Algorithm`.
        optimizer: See `Algorithm`.
        transport: See `Algorithm`.
        partners: Chooses the ranks to average with.
        overlap: Average in a thread while the gradient is computed; else before it. Both are mathematically the same,
            since the gradient is taken at an earlier snapshot.
    """

    def __init__(
        self, model: VectorModel, optimizer: Optimizer, transport: Transport, *, partners: Partners, overlap: bool
    ) -> None:
        super().__init__(model, optimizer, transport, partners=partners)
        self._overlap = overlap

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        before = await self.shared.read(self._snapshot)
        self.model.write(self._snapshot)
        partner = self.partners.next()
        if partner is not None:
            if self._overlap:
                self.shared.begin_average_with(partner)
            else:
                await self.shared.average_with(partner)
        if not await self.has_gradient(compute_gradient, num_samples):
            return
        self.optimizer.step()
        self.model.read(self._change)
        after = await self.add_finite(subtract(self._change, self._snapshot, out=self._change))
        if after is not None:
            self.counts.staleness[after - before] += 1
