"""DynSGD: the server divides each push by its staleness.

Source: Hermans 2017, section 2.3.2, Algorithms 7, 8.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from training.algorithms.method import algorithm
from training.algorithms.server import WindowAlgorithm, WindowSettings, server_traits
from training.transports.basics import Vector
from training.transports.pushes import Shard


class DynSgdSettings(WindowSettings):
    """Add the sum of some local steps to the server, divided by its staleness (dynamic SGD)."""

    name: Literal["dynsgd"]


@algorithm("dynsgd", DynSgdSettings, server_traits("DynSGD"))
class DynSgd(WindowAlgorithm):
    """Push the sum of some local steps over its staleness tau + 1 (Algorithm 8).

    server <- server + sum_i u_i / (tau + 1). Here u_i is the change of the model x by local step i,
    and tau is the number of pushes of others since x <- server, counted for each shard.

    Equation 2.13 divides by tau, which would be 0 for a push that is not stale.
    """

    @override
    def server_update(self, change: Vector, shard: Shard) -> Vector:
        """Return the change divided by the number of pushes of others since the pull, plus 1."""
        staleness = shard.clock - int(self.pulled_clocks[shard.index])
        return change / (staleness + 1)
