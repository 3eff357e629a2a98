"""SwarmSGD: local steps, then an average with a random neighbour (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from hep_core.random_streams import random_stream
from hep_core.settings_section import Needs
from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.gossip import GossipAlgorithm, GossipSettings
from training.algorithms.method import Traits, algorithm


class SwarmSgdSettings(GossipSettings):
    """Average parameters with a random neighbour after some local steps."""

    name: Literal["swarm-sgd"]
    NEEDS: ClassVar[tuple[Needs, ...]] = (
        *GossipSettings.NEEDS,
        Needs("local_steps_law", "local_steps above 1", lambda chosen: chosen.local_steps > 1),
    )
    local_steps: int = Field(default=3, ge=1)
    """Number H of local steps between two averages, at least 1."""
    local_steps_law: Literal["fixed", "geometric"] = "fixed"
    """Number of local steps: always `local_steps`, or geometrically distributed with this mean."""


@algorithm(
    "swarm-sgd",
    SwarmSgdSettings,
    Traits(title="SwarmSGD", synchronous=False, equal_steps=False, pairs=True, needs_others=True),
)
class SwarmSgd(GossipAlgorithm):
    """x_i <- x_i - gamma * g_i, H times, then x_i, x_j <- (x_i + x_j) / 2 with a random neighbour j.

    Each local step starts from the shared vector, so a worker that was met continues from the average at its next step.
    """

    def __init__(self, settings: SwarmSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        is_random = settings.local_steps_law == "geometric"
        self._rng = (
            random_stream(worker.seed, "local steps", self.transport.rank) if is_random else None
        )
        self._local_steps = settings.local_steps
        self._left = self._draw()

    def _draw(self) -> int:
        """Number of local steps until the next average, at least 1."""
        return (
            self._local_steps
            if self._rng is None
            else int(self._rng.geometric(1 / self._local_steps))
        )

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        await self.own_step(compute_gradient, num_samples, version=await self.read())
        self._left -= 1
        if self._left:
            return
        self._left = self._draw()
        partner = self.partners.next()
        if partner is not None:
            await self.shared.average_with(partner)
