"""SwarmSGD: local steps, then an average with a random neighbour (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

from typing import ClassVar, Literal

from numpy.random import Generator
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
        Needs("local_steps_law", "local_steps above 1", lambda settings: settings.local_steps > 1),
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
    """Take H local steps, then average with a random neighbour j.

    x_i <- x_i - gamma * g_i, H times, then x_i, x_j <- (x_i + x_j) / 2.
    x_i is the model of worker i, g_i its gradient, and gamma the learning rate.

    Each local step starts from the shared vector, so a worker with which another one averaged
    continues from the average at its next step.
    """

    def __init__(self, settings: SwarmSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._mean_local_steps = settings.local_steps
        #: Source of the numbers of local steps; None if the number is fixed.
        self._rng: Generator | None = None
        if settings.local_steps_law == "geometric":
            self._rng = random_stream(worker.seed, "local steps", self.transport.rank)
        #: Number of local steps until the next average.
        self._remaining_steps = self._draw_local_steps()

    def _draw_local_steps(self) -> int:
        """Draw the number of local steps until the next average, at least 1."""
        if self._rng is None:
            return self._mean_local_steps
        # A geometric distribution with the success probability p has the mean 1 / p.
        return int(self._rng.geometric(1 / self._mean_local_steps))

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step; after the last one of a window, average with a random partner."""
        version = await self.read()
        await self.own_step(compute_gradient, num_samples, version=version)
        self._remaining_steps -= 1
        if self._remaining_steps:
            return
        self._remaining_steps = self._draw_local_steps()
        partner = self.partners.next()
        if partner is not None:
            await self.shared.average_with(partner)
