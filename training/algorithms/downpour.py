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
from training.transports.pushes import Shard


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
    BETWEEN_WORKERS: ClassVar[tuple[str, ...]] = ("zealous",)

    zealous: bool = False
    """Whether to push earlier than after `local_steps`, when no other worker is at the server; the
    steps up to then all start from the same point (Hermans 2017, Algorithm 6)."""


@algorithm("downpour", DownpourSettings, server_traits("DOWNPOUR"))
class Downpour(WindowAlgorithm):
    """Push the sum of some local steps: server <- server + sum_i u_i; x <- server.

    u_i is the change of the model x by local step i: -eta g_i(x_i) for SGD with the learning rate
    eta and the gradient g_i (equations 1.2, 1.3, 2.12). With several local steps this is the
    accumulated gradient without normalisation (figure 3.2).

    A zealous worker tries to push after each step, and skips that while another worker is at the
    server. All u_i of its window start from the same x. After `local_steps` it pushes in any case.
    """

    def __init__(self, settings: DownpourSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._zealous = settings.zealous
        #: Sum of the steps of a zealous window; the model does not contain them.
        self._gathered = self.model.empty()
        self._gathered.fill(0)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step; a zealous worker then moves it into its sum and tries to push."""
        await super().step(compute_gradient, num_samples)
        # A full window was pushed by the base class, which sets the number of steps back to 0.
        window_continues = self.steps_in_window > 0
        if self._zealous and window_continues:
            # The step moves from the model into the sum, and the model back to its start.
            self._gathered[:] = self.window_change(self._change)
            self.model.write(self.pulled)
            await self.end_window()

    @override
    async def push_window(self, change: Vector) -> bool:
        """Push a change; before the end of a zealous window, only if nobody is at the server."""
        window_is_full = self.steps_in_window >= self._local_steps
        if not window_is_full:
            return await self.try_push(self.rule_to_add(change))
        return await super().push_window(change)

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
