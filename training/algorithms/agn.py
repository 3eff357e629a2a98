"""AGN: the mean of some local steps goes to a server (Hermans 2017, chapter 3, Algorithm 10)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import override

from training.algorithms.method import algorithm
from training.algorithms.server import WindowAlgorithm, WindowSettings, server_traits
from training.transports.basics import Vector
from training.transports.pushes import Shard


class AgnSettings(WindowSettings):
    """Add the mean of some local steps to the server (accumulated gradient normalisation)."""

    name: Literal["agn"]
    local_steps: int = Field(default=10, ge=1)
    """Number lambda of local steps between two pushes, at least 1; (workers + layers) / 2 is a
    start."""


@algorithm("agn", AgnSettings, server_traits("AGN"))
class Agn(WindowAlgorithm):
    """Push the mean of lambda local steps: server <- server + 1/lambda sum_i u_i; x <- server.

    u_i is the change of the model x by local step i: -eta g_i(x_i) for SGD (equation 3.1). If some
    of the lambda steps have no gradient, the sum is divided by the number of those that have one.
    """

    @override
    def server_update(self, change: Vector, shard: Shard) -> Vector:
        """Return the mean of the window's steps, for the elements of a shard."""
        return change / self.gradients_in_window
