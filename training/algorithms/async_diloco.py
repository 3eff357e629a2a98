"""Asynchronous DiLoCo: outer steps at a server, with momentum that is renewed once a round.

Source: Liu et al. 2024, Algorithm 3 (delayed Nesterov) and section 5 (dynamic local updates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.diloco import OuterStepConstants
from training.algorithms.method import algorithm
from training.algorithms.server import WindowAlgorithm, WindowSettings, server_traits
from training.transports.basics import Vector
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import Shard

#: Decimals of a number of steps in proportion to a speed, before it is rounded to a whole number.
_DECIMALS_OF_STEPS: Final = 6


class AsyncDiLoCoSettings(OuterStepConstants, WindowSettings):
    """Move a server by many local steps of each worker, with momentum that many pushes share."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "early_momentum",
            "outer_momentum above 0",
            lambda settings: settings.outer_momentum > 0,
        ),
        Needs(
            "dynamic_steps",
            "local_steps above 1, of which a slow worker takes fewer",
            lambda settings: settings.local_steps > 1,
        ),
    )

    # The momentum of one worker acts with each of its pushes, and it has nobody's speed but its own.
    BETWEEN_WORKERS: ClassVar[tuple[str, ...]] = ("early_momentum", "dynamic_steps")

    name: Literal["async-diloco"]
    local_steps: int = Field(default=50, ge=1)
    """Number H of local steps of the fastest worker between two pushes, at least 1. The optimizer
    of the paper is `adamw`."""
    outer_momentum: float = Field(default=0.5, ge=0, lt=1)
    """Momentum factor of the outer step, at least 0 and below 1. A push is about a round old, for
    which the 0.9 of `diloco` may be too much."""
    early_momentum: float = Field(default=0.0, ge=0, le=1)
    """Part c N of the momentum that acts with all N pushes of a round alike, from 0 to 1; the rest
    acts with the last one."""
    dynamic_steps: bool = True
    """Whether a slow worker takes fewer local steps, in proportion to its speed; else all take
    `local_steps`."""


@algorithm("async-diloco", AsyncDiLoCoSettings, server_traits("Async DiLoCo"))
class AsyncDiLoCo(WindowAlgorithm):
    """Push g = x_0 - x after some local steps; every N-th push renews the momentum.

    D <- D + g / N; server <- server - eta (c mu u + g / N); x <- server.
    Every N-th push: u <- mu u + D; server <- server - eta ((1 - c N + c) mu u + g / N); D <- 0.

    N is the number of workers. x_0 is the server from which the worker's model x started, D the sum
    of the pushes since the last renewal, and u the outer momentum; both lie at the server. mu is
    the momentum factor, eta the outer rate, and c N the early momentum.

    A worker takes H v / max_j v_j steps between two pushes, rounded, at least 1. v_j is the speed
    of worker j: the gradients of its last window over the time of computing them. A worker that
    stops keeps the speed of the last window that it pushed.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_speeds",)
    """Attributes that checkpoints leave out; each worker saves its part as `_own_speed`."""
    _speeds: ParameterServer
    """(N,) the speeds of all workers [1/s]; from `start` on."""

    def __init__(self, settings: AsyncDiLoCoSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        # D and u.
        self.num_moments = 2
        self._eta = settings.outer_rate
        self._mu = settings.outer_momentum
        self._early_momentum = settings.early_momentum
        self._has_dynamic_steps = settings.dynamic_steps
        #: H.
        self._most_steps = settings.local_steps
        self._own_speed = 0.0
        """v of this worker [1/s]; 0 before its first push."""
        self._compute_seconds = 0.0
        """Time of computing the gradients of the window [s]."""

    @override
    async def make_server(self, content: Vector) -> ParameterServer:
        """Make the server and the vector of the speeds; all workers together."""
        speeds = np.zeros(self.transport.world_size)
        speeds[self.transport.rank] = self._own_speed
        await self.transport.all_reduce_sum(speeds)
        self._speeds = await self.transport.parameter_server(speeds)
        return await super().make_server(content)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step, and note the time of its gradient; after the last one, push."""

        async def compute_and_note_time() -> None:
            started = self.transport.now()
            await compute_gradient()
            # A GPU computes beside the host; this question waits for the gradient.
            self.model.gradient_is_finite()
            self._compute_seconds += self.transport.now() - started

        await super().step(compute_and_note_time, num_samples)

    @override
    async def push_window(self, change: Vector) -> bool:
        """Push the change of a window, and adapt the number of steps of the next one."""
        await super().push_window(change)
        # A simulated gradient may take no time.
        if self._has_dynamic_steps and self._compute_seconds:
            await self._adapt_steps()
        return True

    async def _adapt_steps(self) -> None:
        """Share this worker's speed, and set its steps in proportion to the fastest worker's."""
        self._own_speed = self.gradients_in_window / self._compute_seconds
        speeds = np.empty(self.transport.world_size)

        def share_speed(shard: Shard) -> None:
            shard.vector[self.transport.rank] = self._own_speed
            speeds[:] = shard.vector

        await self._speeds.push(share_speed)
        exact_steps = self._most_steps * self._own_speed / speeds.max()
        # Digits that depend on the clock do not decide whether a half is rounded up.
        stable_steps = round(exact_steps, _DECIMALS_OF_STEPS)
        nearest_steps = math.floor(stable_steps + 0.5)
        self._local_steps = max(1, nearest_steps)

    @override
    def begin_window(self) -> None:
        super().begin_window()
        self._compute_seconds = 0.0

    @override
    def server_update(self, change: Vector, shard: Shard) -> Vector:
        """Return the outer step with g = -change, and change D and u, the moments of the shard."""
        num_workers = self.transport.world_size
        # g / N.
        share = -change / num_workers
        sum_of_pushes, momentum = shard.moments
        sum_of_pushes += share
        # c, or 1 - c N + c with the last push of a round.
        momentum_weight = self._early_momentum / num_workers
        pushes_before = int(self.pushes_before[shard.index]) + shard.clock
        is_last_of_round = (pushes_before + 1) % num_workers == 0
        if is_last_of_round:
            momentum *= self._mu
            momentum += sum_of_pushes
            sum_of_pushes[:] = 0
            momentum_weight += 1 - self._early_momentum
        outer_step = momentum_weight * self._mu * momentum + share
        update: Vector = -self._eta * outer_step
        return update

    @override
    async def close(self) -> None:
        await self._speeds.close()
        await super().close()

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        # The vector of the speeds is made from it, before the attributes are restored.
        self._own_speed = state["attributes"]["_own_speed"]
        await super().restore(state)
