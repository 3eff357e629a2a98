"""EASGD: elastic averaging (Zhang et al. 2015, Algorithm 1; Hermans 2017, sections 2.2.2, 2.3.3, Algorithms 4, 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.base import Algorithm, ComputeGradient, Worker
from training.algorithms.method import Traits, algorithm
from training.algorithms.server import ServerAlgorithm, ServerSettings, server_traits
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import Layout, ParameterServer, Shard


class ElasticSettings(ServerSettings):
    """Settings of elastic averaging."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs("equilibrium_stop", "local_steps above 1", lambda chosen: chosen.local_steps > 1),
    )

    local_steps: int = Field(default=10, ge=1)
    """Number tau of local steps between two exchanges, at least 1. The steps after the last exchange do not reach the
    server, which is the model of the run."""
    alpha: float | None = Field(default=None, gt=0)
    """Part of its distance to the server that a worker moves in an exchange, and the server towards it; null: the
    learning rate times `rho`, else 0.9 / workers."""
    rho: float | None = Field(default=None, gt=0)
    """Elasticity: alpha divided by the learning rate, such as 5; null: see `alpha`."""
    gradient: Literal["snapshot", "moved"] = "snapshot"
    """Where the gradient of an exchange step is taken: at the model before the exchange (Zhang et al. 2015, Algorithm
    1), or at the moved one (Hermans 2017, Algorithm 9)."""
    equilibrium_stop: bool = False
    """Whether to exchange before the end of `local_steps` once a step is no longer than the elastic term."""

    @model_validator(mode="after")
    def _one_key_gives_the_moving_rate(self) -> Self:
        if self.alpha is not None and self.rho is not None:
            raise ValueError("alpha is the learning rate times rho; set one of them")
        return self

    @property
    @override
    def counters(self) -> tuple[str, ...]:
        return (
            (*super().counters, "equilibrium_stops") if self.equilibrium_stop else super().counters
        )


class ElasticAlgorithm(ServerAlgorithm):
    """Own steps of a model that stays the worker's; in an exchange, what it loses is what the server gains.

    Every tau steps: e = alpha (x - server); x <- x - e; server <- server + e, all with the values before the exchange.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_own", "elastic")

    def __init__(self, settings: ElasticSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._period, self._stops = settings.local_steps, settings.equilibrium_stop
        self._alpha, self._rho = settings.alpha, settings.rho
        self._at_snapshot = settings.gradient == "snapshot"
        self._since = 0
        #: The model in an exchange, and what it loses.
        self._own, self.elastic = self.model.empty(), self.model.empty()

    @property
    def alpha(self) -> float:
        """The moving rate now."""
        if self._alpha is not None:
            return self._alpha
        return 0.9 / self.transport.world_size if self._rho is None else self.rate * self._rho

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        exchanges = self._at_snapshot and self._since == 0
        if exchanges:
            await self.exchange()
        if self._stops:
            self.model.read(self._own)
        has_stepped = await self.own_step(compute_gradient, num_samples)
        is_at_rest = (
            has_stepped and self._stops and self._is_in_equilibrium(after_exchange=exchanges)
        )
        self._since += 1
        if await self.is_due(is_at_rest=is_at_rest):
            if self._stops:
                self.acted["equilibrium_stops"] += self._since < self._period
            self._since = 0
            if not self._at_snapshot:
                await self.exchange()
                exchanges = True
        if exchanges:
            self.model.read(self._own)
            self._own -= self.elastic
            self.model.write(self._own)

    async def own_step(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Step without the server; False: there is no gradient."""
        if not await self.has_gradient(compute_gradient, num_samples):
            return False
        self.optimizer.step()
        return True

    async def is_due(self, *, is_at_rest: bool) -> bool:
        """Whether the window ends."""
        return is_at_rest or self._since == self._period

    def _is_in_equilibrium(self, *, after_exchange: bool) -> bool:
        """Whether |step| <= |alpha (x - server)|, with x before the step but for its elastic part.

        This is equation 2.9 of Hermans 2017, where the step is eta g. His equation 2.10, |eta g| - |alpha (x - server)|
        < eta, is always true of a gradient shorter than 1, so that each step would be an exchange.
        """
        self.model.read(self._change)
        self._change -= self._own
        step = float(np.linalg.norm(self._change))
        self._own -= self.seen
        if after_exchange:
            self._own -= self.elastic
        return step <= self.alpha * float(np.linalg.norm(self._own))

    async def exchange(self) -> None:
        """Move the server by `elastic`; a model that is not finite is given up for the server."""
        self.elastic.fill(0)
        self.model.read(self._own)
        if not is_finite(self._own):
            self.skipped += 1
            await self.see()
            self.model.write(self.seen)
            self._own[:] = self.seen
        await self.meet(self._own)

    async def meet(self, own: Vector) -> None:
        """Exchange with the server."""
        alpha = self.alpha

        def attract(shard: Shard) -> None:
            elastic = self.elastic[shard.part]
            np.subtract(own[shard.part], shard.vector, out=elastic)
            elastic *= alpha
            shard.vector += elastic

        await self.push(attract)

    @override
    async def add(self, change: Vector) -> None:
        """Add to the model of this worker; the server follows by the exchanges."""
        await Algorithm.add(self, change)

    @override
    async def catch_up(self) -> None:
        """Nothing: the model of a worker is its own."""


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
    async def make_server(self, content: Vector) -> ParameterServer:
        if not self._is_together:
            return await super().make_server(content)
        await self.transport.broadcast(self.seen)
        return ParameterServer(
            Layout(self.seen.size, self.num_shards), self.seen, now=self.transport.now
        )

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
