"""SwarmSGD: local steps, then an average with a random neighbour (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker, subtract
from training.algorithms.gossip import GossipAlgorithm, GossipSettings
from training.algorithms.method import Traits, algorithm
from training.random_streams import generator_state, random_stream, set_generator_state
from training.transports.transport import Vector


class SwarmSgdSettings(GossipSettings):
    """Average parameters with a random neighbour after some local steps."""

    name: Literal["swarm-sgd"]
    local_steps: int = Field(default=3, ge=1)
    """Number H of local steps between two averages, at least 1."""
    local_steps_law: Literal["fixed", "geometric"] = "fixed"
    """Number of local steps: always `local_steps`, or geometrically distributed with this mean."""


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


@algorithm(
    "swarm-sgd",
    SwarmSgdSettings,
    Traits(title="SwarmSGD", synchronous=False, equal_steps=False, pairs=True, can_shrink=False),
)
class SwarmSgd(GossipAlgorithm):
    """x_i <- x_i - gamma * g_i, H times, then x_i, x_j <- (x_i + x_j) / 2 with a random neighbour j.

    The local steps are those of a private model. Its progress is published as a difference, so that concurrent averages
    by partners are kept.
    """

    KEPT = ("_left",)

    def __init__(self, settings: SwarmSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        is_random = settings.local_steps_law == "geometric"
        rng = random_stream(worker.seed, "local steps", self.transport.rank) if is_random else None
        self._local_steps = LocalSteps(settings.local_steps, rng)
        self._left = self._local_steps.draw()
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
            self.staleness[after - self._averages_seen] += 1

    async def _take_over(self) -> None:
        self._averages_seen = await self.shared.read(self._snapshot)
        self.model.write(self._snapshot)

    @override
    async def state(self) -> dict[str, Any]:
        """The private model and the snapshot from which it started, besides the shared vector."""
        rng = self._local_steps.rng
        private = self.model.empty()
        self.model.read(private)
        counts = self.shared.counts
        return {
            **await super().state(),
            "started_from": self._snapshot.copy(),
            "private": private,
            "averages_unseen": counts.begun + counts.received - self._averages_seen,
            "local_steps": None if rng is None else generator_state(rng),
        }

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        await super().restore(state)
        self._snapshot[:] = state["started_from"]
        self.model.write(state["private"])
        # A new shared vector has been through no average.
        self._averages_seen = -state["averages_unseen"]
        if self._local_steps.rng is not None:
            set_generator_state(self._local_steps.rng, state["local_steps"])
