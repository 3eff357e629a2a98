"""EASGD: elastic averaging.

Source: Zhang et al. 2015, Algorithm 1; Hermans 2017, sections 2.2.2, 2.3.3, Algorithms 4, 9.
"""

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
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.pushes import Shard


class ElasticSettings(ServerSettings):
    """Settings of elastic averaging."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs("equilibrium_stop", "local_steps above 1", lambda settings: settings.local_steps > 1),
    )

    local_steps: int = Field(default=10, ge=1)
    """Number tau of local steps between two exchanges, at least 1. The steps after the last
    exchange do not reach the server, which is the model of the run."""
    alpha: float | None = Field(default=None, gt=0)
    """Part of its distance to the server that a worker moves in an exchange, and the server towards
    it; null: the learning rate times `rho`, else 0.9 / workers."""
    rho: float | None = Field(default=None, gt=0)
    """Elasticity: alpha divided by the learning rate, such as 5; null: see `alpha`."""
    gradient: Literal["snapshot", "moved"] = "snapshot"
    """Where the gradient of an exchange step is taken: at the model before the exchange (Zhang et
    al. 2015, Algorithm 1), or at the moved one (Hermans 2017, Algorithm 9)."""
    equilibrium_stop: bool = False
    """Whether to exchange before the end of `local_steps` once a step is no longer than the elastic
    term."""

    @model_validator(mode="after")
    def _one_key_gives_the_moving_rate(self) -> Self:
        if self.alpha is not None and self.rho is not None:
            raise ValueError("alpha is the learning rate times rho; set one of them")
        return self

    @property
    @override
    def counters(self) -> tuple[str, ...]:
        if self.equilibrium_stop:
            return (*super().counters, "equilibrium_stops")
        return super().counters


class ElasticAlgorithm(ServerAlgorithm):
    """A worker with a model x of its own; an exchange moves it and the server towards each other.

    Every tau steps: e = alpha (x - server); x <- x - e; server <- server + e, all with the values
    before the exchange. e is the elastic term, and the steps between two exchanges are a window.

    With the equilibrium stop a window ends earlier, once a step is no longer than the elastic term.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_local", "elastic")
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: ElasticSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._local_steps = settings.local_steps
        self._alpha = settings.alpha
        self._rho = settings.rho
        self._takes_gradient_at_snapshot = settings.gradient == "snapshot"
        self._stops_in_equilibrium = settings.equilibrium_stop
        self._steps_in_window = 0
        #: x before an exchange or a local step.
        self._local = self.model.empty()
        self.elastic = self.model.empty()
        """e of the last exchange."""

    @property
    def alpha(self) -> float:
        """The part of the distance x - server that an exchange moves each of them, now."""
        if self._alpha is not None:
            return self._alpha
        if self._rho is not None:
            return self.learning_rate * self._rho
        return 0.9 / self.transport.world_size

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a step in the order of Zhang et al. or of Hermans; the key `gradient` chooses."""
        if self._takes_gradient_at_snapshot:
            await self._step_of_zhang(compute_gradient, num_samples)
        else:
            await self._step_of_hermans(compute_gradient, num_samples)

    async def _step_of_zhang(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take the first step of a window with an exchange, all others without.

        The exchange moves the server at once. The gradient is taken at the model before the
        exchange, and only after the step the model moves too (Zhang et al. 2015, Algorithm 1).
        """
        exchanges = self._steps_in_window == 0
        if exchanges:
            await self.exchange()
        is_in_equilibrium = await self._step_locally(
            compute_gradient, num_samples, after_exchange=exchanges
        )
        # After the last step of a window the count is 0, so the next step exchanges.
        await self._end_step(is_in_equilibrium=is_in_equilibrium)
        if exchanges:
            self._move_by_elastic()

    async def _step_of_hermans(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Step, then exchange and move, if the window ends (Hermans 2017, Algorithm 9)."""
        is_in_equilibrium = await self._step_locally(
            compute_gradient, num_samples, after_exchange=False
        )
        window_ended = await self._end_step(is_in_equilibrium=is_in_equilibrium)
        if window_ended:
            await self.exchange()
            self._move_by_elastic()

    async def _step_locally(
        self, compute_gradient: ComputeGradient, num_samples: int, *, after_exchange: bool
    ) -> bool:
        """Step without the server; return whether the equilibrium stop applies to this step.

        `after_exchange`: whether the step follows an exchange that has not moved the model yet.
        """
        if not self._stops_in_equilibrium:
            await self.local_step(compute_gradient, num_samples)
            return False
        self.model.read(self._local)
        has_stepped = await self.local_step(compute_gradient, num_samples)
        return has_stepped and self._is_in_equilibrium(after_exchange=after_exchange)

    async def local_step(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Step without the server; return False if there is no gradient, and so no step."""
        if not await self.has_gradient(compute_gradient, num_samples):
            return False
        self.optimizer.step()
        return True

    def _is_in_equilibrium(self, *, after_exchange: bool) -> bool:
        """Return whether |step| <= |alpha (x - server)|, with x before the step.

        `_local` must hold x. After an exchange, e is subtracted from x, since the model has not
        moved yet. `_change` and `_local` are overwritten.

        This is equation 2.9 of Hermans 2017, where the step is eta g. His equation 2.10, |eta g| -
        |alpha (x - server)| < eta, is always true of a gradient shorter than 1, so that each step
        would be an exchange.
        """
        self.model.read(self._change)
        self._change -= self._local
        step_length = float(np.linalg.norm(self._change))
        # From here on, `_local` is the distance x - server.
        self._local -= self.pulled
        if after_exchange:
            self._local -= self.elastic
        return step_length <= self.alpha * float(np.linalg.norm(self._local))

    async def _end_step(self, *, is_in_equilibrium: bool) -> bool:
        """Count the step; return whether the window has ended, and then count from 0 again."""
        self._steps_in_window += 1
        if not await self.window_ends(is_in_equilibrium=is_in_equilibrium):
            return False
        if self._stops_in_equilibrium and self._steps_in_window < self._local_steps:
            self.actions["equilibrium_stops"] += 1
        self._steps_in_window = 0
        return True

    async def window_ends(self, *, is_in_equilibrium: bool) -> bool:
        """Return whether the window ends with this step: it is the last, or in equilibrium."""
        return is_in_equilibrium or self._steps_in_window == self._local_steps

    async def exchange(self) -> None:
        """Compute e into `elastic`, and move the server by it; the model stays where it is.

        A model that is not finite is replaced by the server first, so that e is about 0.
        """
        self.elastic.fill(0)
        self.model.read(self._local)
        if not is_finite(self._local):
            self.num_steps_not_finite += 1
            await self.pull()
            self.model.write(self.pulled)
            self._local[:] = self.pulled
        await self.move_server(self._local)

    async def move_server(self, local: Vector) -> None:
        """Compute e of a worker's model, and add it to the server.

        Each shard is treated under its lock, so that e uses the server as it is then.
        """
        alpha = self.alpha

        def elastic_update(shard: Shard) -> None:
            # A view: what is written here is e for the elements of the shard.
            elastic = self.elastic[shard.elements]
            np.subtract(local[shard.elements], shard.vector, out=elastic)
            elastic *= alpha
            shard.vector += elastic

        await self.push(elastic_update)

    def _move_by_elastic(self) -> None:
        """Subtract e from the model: the worker's half of an exchange."""
        self.model.read(self._local)
        self._local -= self.elastic
        self.model.write(self._local)

    @override
    async def add(self, change: Vector) -> None:
        """Add to the model of this worker; the server follows by the exchanges."""
        await Algorithm.add(self, change)

    @override
    async def catch_up(self) -> None:
        """Do nothing: the model of a worker is its own."""


class EasgdSettings(ElasticSettings):
    """A spring pulls each worker and a server together every few local steps."""

    name: Literal["easgd"]
    NEEDS: ClassVar[tuple[Needs, ...]] = (
        *ElasticSettings.NEEDS,
        *(
            Needs(
                key,
                "synchronous: false, since else each worker has a copy of the server",
                lambda settings: not settings.synchronous,
            )
            for key in ("shards", "network")
        ),
    )
    BETWEEN_WORKERS: ClassVar[tuple[str, ...]] = ("synchronous",)

    synchronous: bool = False
    """Whether all workers exchange with the server together, by an all-reduce; else each when it is
    ready."""

    @property
    @override
    def traits(self) -> Traits:
        if not self.synchronous:
            return super().traits
        return replace(super().traits, synchronous=True, equal_steps=True)


@algorithm("easgd", EasgdSettings, server_traits("EASGD"))
class Easgd(ElasticAlgorithm):
    """Pull worker and server together by a spring.

    x_i <- x_i - eta g_i - alpha (x_i - server); server <- server + alpha sum_i (x_i - server).
    x_i is the model of worker i, g_i its gradient and eta the learning rate.

    Asynchronous, a worker's term moves the server when the worker comes (equations 2.15, 2.16).
    Synchronous, all terms use the same server (equations 2.4, 2.5), of which each worker has a
    copy. With the equilibrium stop the workers then end a window together, once all are in
    equilibrium.
    """

    def __init__(self, settings: EasgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._is_synchronous = settings.synchronous

    @override
    async def make_server(self, content: Vector) -> ParameterServer:
        """Make the server; synchronous workers each make a copy, equal to that of rank 0."""
        if not self._is_synchronous:
            return await super().make_server(content)
        await self.transport.broadcast(self.pulled)
        layout = Layout(self.pulled.size, self.num_shards)
        return ParameterServer(layout, self.pulled, now=self.transport.now)

    @override
    async def move_server(self, local: Vector) -> None:
        """Compute e, and add it to the server; synchronous workers add the sum of all e."""
        if not self._is_synchronous:
            await super().move_server(local)
            return
        # All copies of the server are equal, so each worker can compute e before the sum.
        np.subtract(local, self.pulled, out=self.elastic)
        self.elastic *= self.alpha
        self._change[:] = self.elastic
        await self.transport.all_reduce_sum(self._change)

        def add_sum(shard: Shard) -> None:
            shard.vector += self._change[shard.elements]

        await self.push(add_sum)

    @override
    async def window_ends(self, *, is_in_equilibrium: bool) -> bool:
        """Return whether the window ends with this step.

        With the equilibrium stop, synchronous workers vote after each step but the last: the window
        ends once all are in equilibrium. All must exchange at the same step, but each knows only
        its own gradient.
        """
        is_last_step = self._steps_in_window == self._local_steps
        is_put_to_vote = self._is_synchronous and self._stops_in_equilibrium and not is_last_step
        if not is_put_to_vote:
            return await super().window_ends(is_in_equilibrium=is_in_equilibrium)
        votes = np.array([float(is_in_equilibrium)])
        await self.transport.all_reduce_sum(votes)
        return bool(votes.item() == self.transport.world_size)
