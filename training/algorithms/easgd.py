"""EASGD: elastic averaging (Zhang et al. 2015, Algorithm 1; Hermans 2017, sections 2.2.2, 2.3.3, Algorithms 4, 9)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from training.algorithms.base import Worker
from training.algorithms.elastic import ElasticAlgorithm, ElasticSettings
from training.algorithms.method import Traits, algorithm
from training.algorithms.server import server_traits
from training.effects import Needs
from training.transports.basics import Vector
from training.transports.parameter_server import Layout, ParameterServer, Shard


class EasgdSettings(ElasticSettings):
    """A spring pulls each worker and a server together every few local steps."""

    name: Literal["easgd"]
    NEEDS: ClassVar[tuple[Needs, ...]] = (
        *ElasticSettings.NEEDS,
        *(
            Needs(
                key,
                "synchronous: false, since else each worker has a copy of the server",
                lambda own: not own.synchronous,
            )
            for key in ("shards", "network")
        ),
    )
    synchronous: bool = False
    """Whether all workers meet the server together, by an all-reduce; else each when it is ready."""

    @property
    @override
    def traits(self) -> Traits:
        if not self.synchronous:
            return super().traits
        return replace(super().traits, synchronous=True, equal_steps=True)


@algorithm("easgd", EasgdSettings, server_traits("EASGD"))
class Easgd(ElasticAlgorithm):
    """x_i <- x_i - eta g_i - alpha (x_i - server); server <- server + alpha sum_i (x_i - server).

    Asynchronous, a worker's term moves the server when the worker comes (equations 2.15, 2.16). Synchronous, all terms
    use the same server (equations 2.4, 2.5), of which each worker has a copy. With the equilibrium stop the workers
    then end a window together, once all are in equilibrium.
    """

    def __init__(self, settings: EasgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._is_together = settings.synchronous

    @override
    async def make_server(self) -> ParameterServer:
        if not self._is_together:
            return await super().make_server()
        await self.transport.broadcast(self.seen)
        return ParameterServer(Layout(self.seen, self.num_shards, {}), self.seen, now=self.transport.now)

    @override
    async def meet(self, own: Vector) -> None:
        if not self._is_together:
            await super().meet(own)
            return
        np.subtract(own, self.seen, out=self.elastic)
        self.elastic *= self.alpha
        self._change[:] = self.elastic
        await self.transport.all_reduce_sum(self._change)

        def add(shard: Shard) -> None:
            shard.vector += self._change[shard.part]

        await self.push(add)

    @override
    async def is_due(self, *, is_at_rest: bool) -> bool:
        """Whether the window ends: together, the workers vote after each step but the last of `local_steps`.

        Who is in equilibrium depends on the gradient of this step, and all must leave at the same one.
        """
        if not (self._is_together and self._stops) or self._since == self._period:
            return await super().is_due(is_at_rest=is_at_rest)
        votes = np.array([float(is_at_rest)])
        await self.transport.all_reduce_sum(votes)
        return bool(votes.item() == self.transport.world_size)
