"""AD-PSGD: gradients at a snapshot of the model, with concurrent pairwise averages.

Source: Migliorini 2020, section 2.2.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from training.algorithms.base import ComputeGradient
from training.algorithms.gossip import GossipAlgorithm, GossipSettings
from training.algorithms.method import Traits, algorithm


class AdPsgdSettings(GossipSettings):
    """Average parameters with a random neighbour at every step, without waiting for it."""

    name: Literal["ad-psgd"]


@algorithm(
    "ad-psgd",
    AdPsgdSettings,
    Traits(title="AD-PSGD", synchronous=False, equal_steps=False, pairs=True, needs_others=True),
)
class AdPsgd(GossipAlgorithm):
    """Begin an average with a random neighbour at every step, and step without waiting for it.

    x_i <- average - gamma * g_i(snapshot).

    x_i is the model of worker i, and the average is that of x_i and the model of a random
    neighbour. The gradient g_i is taken at a copy of x_i, the snapshot. The learning rate gamma is
    missing in the formula of Migliorini 2020; the paper (Lian et al. 2017) has it.

    The optimiser's change at the snapshot is added to the shared vector as a difference, so that
    concurrent averages are kept. Their number is the staleness of the step.

    An average with a worker of another host runs during the gradient, one on the same host before
    it. Both are mathematically the same, since the gradient is taken at an earlier snapshot.
    """

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Read the snapshot, begin an average with a random partner, then take the step."""
        version = await self.read()
        partner = self.partners.next()
        if partner is not None:
            await self.shared.begin_average_with(partner)
        await self.own_step(compute_gradient, num_samples, version=version)
