"""ADAG: each weight of a push shrinks with the way that the server has gone (Hermans 2017, chapter 4)."""

from __future__ import annotations

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
from training.transports.parameter_server import Shard


class AdagSettings(WindowSettings):
    """Add the mean of some local steps; each weight of it shrinks with the way that the server has gone meanwhile."""

    name: Literal["adag"]
    local_steps: int = Field(default=10, ge=1)
    """Number lambda of local steps between two pushes, at least 1; (workers + layers) / 2 is a start."""
    gamma: float | None = Field(default=None, gt=0)
    """Square of the way of a weight that halves its step, greater than 0, such as 1e-4 (equation 4.7); null: the
    learning rate (equation 4.1)."""
    scaling: Literal["server", "worker"] = "server"
    """Who scales: the `server`, under the lock (Algorithms 11, 12), or the `worker`, by the server that it sees before
    its push, from which it then continues (Algorithm 13)."""


@algorithm("adag", AdagSettings, server_traits("ADAG"))
class Adag(Agn):
    """Server <- server + s * 1/lambda sum_i u_i, with s = 1 / ((server - x_0)^2 / gamma + 1) for each weight.

    x_0 is the server from which the window started (equations 4.1, 4.7, 4.8).
    """

    SCRATCH = ("_started_from",)

    def __init__(self, settings: AdagSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._gamma = settings.gamma
        self._by_worker = settings.scaling == "worker"
        self._started_from = self.model.empty()
        self.scaling: Counter[int] = Counter()
        """Number of pushes to a shard, or scaled by a worker, by the mean of 1 - s over their weights [%]."""

    @override
    def weighed(self, change: Vector, shard: Shard) -> Vector:
        mean = super().weighed(change, shard)
        return mean if self._by_worker else self._scale(shard.vector - self.seen[shard.part]) * mean

    @override
    async def send(self, change: Vector, *, asks: bool) -> bool:
        if not self._by_worker:
            return await super().send(change, asks=asks)
        np.copyto(self._started_from, self.seen)
        clocks = self.clocks
        await self.see()
        change *= self._scale(self.seen - self._started_from)
        mean = change / self.taken

        def add(shard: Shard) -> None:
            shard.vector += mean[shard.part]

        made = await self.server.push(add)
        self.staleness.update((made.before - clocks)[made.after > made.before].tolist())
        # The worker continues from the server without its own push, which does not make the next one stale.
        self.clocks += made.after - made.before
        return True

    def _scale(self, way: Vector) -> Vector:
        gamma = self.rate if self._gamma is None else self._gamma
        scale: Vector = 1 / (np.square(way) / gamma + 1)
        if np.isfinite(mean := float(scale.mean())):
            self.scaling[round(100 * (1 - mean))] += 1
        return scale

    @override
    def counters(self) -> Counters:
        return {**super().counters(), "scaling_percent": self.scaling.copy()}
