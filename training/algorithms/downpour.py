"""DOWNPOUR: workers add their gradients to a server, without waiting.

Source: Hermans 2017, section 2.3.1, Algorithms 5, 6.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.method import algorithm
from training.algorithms.server import WindowAlgorithm, WindowSettings, server_traits
from training.transports.basics import Vector
from training.transports.parameter_server import Shard


class DownpourSettings(WindowSettings):
    """Add the sum of some local steps to the server; with one step this is DOWNPOUR."""

    name: Literal["downpour"]
    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "zealous",
            "local_steps above 1, the highest number between pushes",
            lambda settings: settings.local_steps > 1,
        ),
    )
    zealous: bool = False
    """Whether to push earlier than after `local_steps`, when no other worker is at the server; the
    steps up to then all start from the same point (Hermans 2017, Algorithm 6)."""


@algorithm("downpour", DownpourSettings, server_traits("DOWNPOUR"))
class Downpour(WindowAlgorithm):
    """Push the sum of some local steps: server <- server + sum_i u_i; x <- server.

    u_i = -eta g_i(x_i) for SGD (equations 1.2, 1.3, 2.12).

    With several local steps this is the accumulated gradient without normalisation (figure 3.2).
    Zealous: all u_i of a window start from the same x, and their number is at most `local_steps`.
    """

    def __init__(self, settings: DownpourSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._zealous = settings.zealous
        #: The sum of the steps of a zealous window, which the model does not contain.
        self._gathered = self.model.empty()
        self._gathered.fill(0)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        await super().step(compute_gradient, num_samples)
        window_continues = self.steps_in_window > 0
        if self._zealous and window_continues:
            self._gathered[:] = self.window_change(self._change)
            self.model.write(self.pulled)
            await self.end_window()

    @override
    async def send(self, change: Vector) -> bool:
        if self.steps_in_window < self._local_steps:
            return await self.try_push(self.adding(change))
        return await super().send(change)

    @override
    def server_update(self, change: Vector, shard: Shard) -> Vector:
        return change

    @override
    def window_change(self, out: Vector) -> Vector:
        super().window_change(out)
        out += self._gathered
        return out

    @override
    def begin_window(self) -> None:
        super().begin_window()
        self._gathered.fill(0)
