"""ADAG: each weight of a push shrinks with the distance that the server has moved.

Source: Hermans 2017, chapter 4.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.agn import Agn
from training.algorithms.base import Counters, Worker
from training.algorithms.method import algorithm
from training.algorithms.server import WindowSettings, server_traits
from training.transports.basics import Vector
from training.transports.pushes import Shard


class AdagSettings(WindowSettings):
    """Add the mean of some local steps, scaled down by the distance that the server has moved."""

    name: Literal["adag"]
    local_steps: int = Field(default=10, ge=1)
    """Number lambda of local steps between two pushes, at least 1; (workers + layers) / 2 is a
    start."""
    gamma: float | None = Field(default=None, gt=0)
    """Square of the distance of a weight that halves its step, greater than 0, such as 1e-4
    (equation 4.7); null: the learning rate (equation 4.1)."""
    scaling: Literal["server", "worker"] = "server"
    """Who scales: the `server`, under the lock (Algorithms 11, 12), or the `worker`, by the server
    that it sees before its push, from which it then continues (Algorithm 13)."""


@algorithm("adag", AdagSettings, server_traits("ADAG"))
class Adag(Agn):
    """Push the mean of lambda local steps, scaled weight by weight.

    server <- server + s * 1/lambda sum_i u_i, with s = 1 / ((server - x_0)^2 / gamma + 1).
    u_i is the change of the model by local step i, and x_0 the server from which the window started
    (equations 4.1, 4.7, 4.8). So s is 1 for a weight that others did not move since, and falls
    towards 0 with the distance.
    """

    SCRATCH = ("_window_start",)
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: AdagSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._gamma = settings.gamma
        self._worker_scales = settings.scaling == "worker"
        #: x_0 during a push with `scaling: worker`.
        self._window_start = self.model.empty()
        self.scaling: Counter[int] = Counter()
        """Number of pushes to a shard, or scaled by a worker, by the mean of 1 - s over their
        weights [%]."""

    @override
    def server_update(self, change: Vector, shard: Shard) -> Vector:
        """Return s times the mean of the window's steps, for the elements of a shard."""
        scale = self._scale(shard.vector - self.pulled[shard.elements])
        # `current` applies this method to a copy that does not count.
        if shard.counts:
            self._count_scale(scale)
        return scale * super().server_update(change, shard)

    @override
    async def push_window(self, change: Vector) -> bool:
        """Push a change; the server scales it or, with `scaling: worker`, this worker.

        A worker that scales pulls, scales the change in place by how far the server has moved since
        the window began, and pushes it. It continues from what it pulled, without its own push.
        """
        if not self._worker_scales:
            return await super().push_window(change)
        np.copyto(self._window_start, self.pulled)
        # The staleness counts from the start of the window, not from the pull that follows.
        clocks_at_start = self.pulled_clocks
        await self.pull()
        scale = self._scale(self.pulled - self._window_start)
        self._count_scale(scale)
        change *= scale
        update = change / self.gradients_in_window

        def add(shard: Shard) -> None:
            shard.vector += update[shard.elements]

        push = await self.server.push(add)
        self.staleness.update(push.staleness(clocks_at_start))
        # Its own push must not make the worker's next one stale.
        self.pulled_clocks += push.clocks_after - push.clocks_before
        return True

    def _scale(self, distance: Vector) -> Vector:
        """Return s, between 0 and 1, for the distance server - x_0 of each weight."""
        gamma = self.learning_rate if self._gamma is None else self._gamma
        scale: Vector = 1 / (np.square(distance) / gamma + 1)
        return scale

    def _count_scale(self, scale: Vector) -> None:
        """Add to the histogram of 1 - s, averaged over the weights and rounded to per cent."""
        mean = float(scale.mean())
        if math.isfinite(mean):
            percent = round(100 * (1 - mean))
            self.scaling[percent] += 1

    @override
    def counters(self) -> Counters:
        return {**super().counters(), "scaling_percent": self.scaling.copy()}
