"""SwarmSGD: local steps, then an average with a random neighbour (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from typing_extensions import override

from training.algorithms.base import ComputeGradient, subtract
from training.algorithms.gossip import GossipAlgorithm, Partners
from training.flat_model import VectorModel
from training.random_streams import generator_state, set_generator_state
from training.transports.transport import Transport, Vector


class LocalSteps:
    """Number of local steps between two averages: always H, or geometrically distributed with mean H.

    Args:
        mean: The number H.
        rng: Draws the numbers; None: always H.

    Examples:
        >>> LocalSteps(3, None).draw()
        3
    """

    def __init__(self, mean: int, rng: np.random.Generator | None) -> None:
        self.mean = mean
        self.rng = rng

    def draw(self) -> int:
        """The next number of steps, at least 1."""
        return self.mean if self.rng is None else int(self.rng.geometric(1 / self.mean))


class SwarmSgd(GossipAlgorithm):
    """H local steps of a private model, then both partners get the average of their updated models.

    The private model's progress is published as a difference, so that concurrent averages by partners are kept.

    Args:
        model: See `Algorithm`.
        optimizer: See `Algorithm`.
        transport: See `Algorithm`.
        partners: Chooses the ranks to average with.
        local_steps: Number of steps between two averages.
    """

    def __init__(
        self,
        model: VectorModel,
        optimizer: Optimizer,
        transport: Transport,
        *,
        partners: Partners,
        local_steps: LocalSteps,
    ) -> None:
        super().__init__(model, optimizer, transport, partners=partners)
        self._local_steps = local_steps
        self._left = local_steps.draw()
        # `_snapshot` is the shared vector at the last read, from which the private model started.
        self._averages_seen = 0

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self._left -= 1
        if self._left:
            return
        self._left = self._local_steps.draw()
        await self._publish()
        partner = self.partners.next()
        if partner is not None:
            await self.shared.average_with(partner)
        await self._take_over()

    async def current(self, out: Vector) -> None:
        """The shared vector plus the progress of the private model since its last publication."""
        await self.shared.read(out)
        self.model.read(self._change)
        out += subtract(self._change, self._snapshot, out=self._change)

    @override
    async def add(self, change: Vector) -> None:
        """Publish the private model plus the change."""
        await self._publish()
        await self.shared.add(change)
        await self._take_over()

    async def _publish(self) -> None:
        self.model.read(self._change)
        after = await self.add_finite(subtract(self._change, self._snapshot, out=self._change))
        if after is not None:
            self.counts.staleness[after - self._averages_seen] += 1

    async def _take_over(self) -> None:
        self._averages_seen = await self.shared.read(self._snapshot)
        self.model.write(self._snapshot)

    @override
    def state(self) -> dict[str, Any]:
        """The private model and the snapshot from which it started."""
        rng = self._local_steps.rng
        private = self.model.empty()
        self.model.read(private)
        counts = self.shared.counts
        return {
            **super().state(),
            "left": self._left,
            "started_from": torch.from_numpy(self._snapshot.copy()),
            "private": torch.from_numpy(private),
            "averages_unseen": counts.begun + counts.received - self._averages_seen,
            "local_steps": None if rng is None else generator_state(rng),
        }

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._left = state["left"]
        self._snapshot[:] = state["started_from"].numpy()
        self.model.write(state["private"].numpy())
        # A new shared vector has been through no average.
        self._averages_seen = -state["averages_unseen"]
        if self._local_steps.rng is not None:
            set_generator_state(self._local_steps.rng, state["local_steps"])
