"""Asynchronous SGD with optimisers at the shards of a server (Neckermann 2017, Algorithms 4 to 6, 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.method import TransportOptions, algorithm
from training.algorithms.server import ServerAlgorithm, ServerSettings, server_traits
from training.transports.basics import Vector
from training.transports.parameter_server import Layout, Push, Rule, Shard, Where

#: The threshold is that of a sample, since the exact one takes as long as a sort.
_SAMPLED: Final = 100_000
#: Of an index in a message.
INDEX_BYTES: Final = 4


def largest(values: Vector, drop_rate: float) -> Vector:
    """Indices of the elements of largest magnitude, in ascending order.

    `values`: (n,).

    Examples:
        >>> largest(np.array([0.1, -3.0, 2.0, 0.0]), 0.5).tolist()
        [1, 2]
        >>> largest(np.array([0.1, -3.0]), 0.0).tolist()
        [0, 1]
    """
    magnitudes = np.abs(values)
    sample = magnitudes[:: -(-len(values) // _SAMPLED) or 1]
    last_dropped = int(len(sample) * drop_rate) - 1
    if last_dropped < 0:
        return np.arange(len(values), dtype=np.int32)
    threshold = np.partition(sample, last_dropped)[last_dropped]
    return np.flatnonzero(magnitudes > threshold).astype(np.int32)


def take_large(
    residual: Vector, gradient: Vector, bounds: Sequence[int], drop_rate: float
) -> tuple[Vector, Vector]:
    """Indices and values to send of a residual and a gradient; the rest stays in the residual, so that nothing is lost.

    `residual`, `gradient`: (n,). `bounds`: where the shards begin, and n; each has a threshold of its own.

    Examples:
        >>> residual = np.zeros(4)
        >>> take_large(residual, np.array([1.0, 5.0, 3.0, 2.0]), [0, 2, 4], 0.5)[0].tolist(), residual.tolist()
        ([1, 2], [1.0, 0.0, 0.0, 2.0])
    """
    residual += gradient
    parts = pairwise(bounds)
    indices = np.concatenate(
        [largest(residual[start:stop], drop_rate) + start for start, stop in parts]
    )
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def update_view(view: Vector, values: Vector, drop_rate: float) -> int:
    """Bring a client's view of a shard nearer to its values, where the difference is large; returns how many elements.

    The view and what is not yet told, values - view, always add up to the values.

    `view`: (n,) what the client has; gets the largest differences. `values`: (n,) the shard.

    Examples:
        >>> view = np.zeros(3)
        >>> update_view(view, np.array([4.0, 1.0, -2.0]), 0.6), view.tolist()
        (2, [4.0, 0.0, -2.0])
    """
    indices = largest(values - view, drop_rate)
    view[indices] = values[indices]
    return len(indices)


class ShardedSettings(ServerSettings):
    """Send gradients to the shards of a server, where the base optimiser makes its steps."""

    name: Literal["sharded"]
    NEEDS: ClassVar[tuple[Needs, ...]] = tuple(
        Needs(
            key,
            "overlap: thread, since else a worker waits for each exchange",
            lambda own: own.overlap == "thread",
        )
        for key in ("bound", "applies_sum", "local_optimizer")
    )
    shards: int | None = Field(default=None, ge=1)
    """Number of parts of the server, each with a lock, an owner and the optimiser's state; null: one per worker."""
    overlap: Literal["thread", "inline"] = "inline"
    """When gradients travel: in a `thread` while the next ones are computed and summed, or before that."""
    bound: int | None = Field(default=None, ge=1)
    """Highest number of steps during one exchange with `overlap: thread`; then the worker waits. Null: no bound."""
    drop_rate: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the elements of a gradient that wait for a later one, and of the changes of the server that wait for
    a later answer, because they are small; at least 0 and below 1, such as 0.99."""

    applies_sum: bool = False
    """Whether a worker makes a step of its own with its summed gradients from the answer, which does not have them
    yet; needs `overlap: thread`."""
    local_optimizer: bool = False
    """Whether a worker makes steps of its own during an exchange, which the answer replaces; needs `overlap: thread`.
    """

    @property
    @override
    def transport_options(self) -> TransportOptions:
        return TransportOptions(background=self.overlap == "thread", network=self.network)

    @property
    @override
    def counters(self) -> tuple[str, ...]:
        return (*super().counters, "elements_dropped") if self.drop_rate else super().counters


@algorithm(
    "sharded", ShardedSettings, replace(server_traits("Sharded server"), server_optimizer=True)
)
class Sharded(ServerAlgorithm):
    """Server <- server + u(g), with u = -eta g for SGD; x <- server, which is the answer (Algorithm 4).

    Overlap: while a push is under way, the worker computes on, at the same x, and sums its gradients (Algorithms 5
    and 6); it may make steps of its own from x meanwhile, and one with the sum it sends from the x that comes (section
    3.4). Dropping: only the largest elements of g + residual travel, and the optimiser leaves all others as they are;
    the answer has the largest elements of server - x, since x is what the worker knows of the server (Algorithms 8 and
    9, whose last answer and residual are x).
    """

    SCRATCH = ("_update", "_clocks_of_sum")

    def __init__(self, settings: ShardedSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._update, self._bound = worker.update, settings.bound
        self._overlaps = settings.overlap == "thread"
        self._applies_sum, self._steps_alone = settings.applies_sum, settings.local_optimizer
        self.num_moments = len(self._update.moments)
        self._drop_rate = settings.drop_rate
        self._sum, self.residual = self.model.empty(), self.model.empty()
        self._sum.fill(0)
        self.residual.fill(0)
        self._bounds = Layout(self._sum.size, self.num_shards).bounds
        #: Steps since the last push began, and those of them with a gradient.
        self._since = self._taken = 0
        self._is_under_way = False
        self._clocks_of_sum = self.clocks

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.model.read_gradient(self._change)
            self._sum += self._change
            self._taken += 1
            if self._steps_alone:
                self.optimizer.step()
        self._since += 1
        may_compute_on = self._bound is None or self._since < self._bound
        if self._is_under_way and self.server.is_under_way and may_compute_on:
            return
        await self._exchange(beside=self._overlaps)

    async def _exchange(self, *, beside: bool) -> None:
        """Take over the answer that is there, and push the sum of the gradients, which are of the model before."""
        clocks = self.clocks
        await self._take_over()
        if not self._taken:
            await self.see()
            self.model.write(self.seen)
            return
        self._clocks_of_sum = clocks
        if self._applies_sum and beside:
            self.model.write_gradient(self._sum)
            self.optimizer.step()
        rule, where = self._message()
        self._since = self._taken = 0
        if beside:
            self._is_under_way = self.server.begin_push(rule, where)
        else:
            await self._see_answer(await self.server.push(rule, where))

    def _message(self) -> tuple[Rule, Where]:
        """What the server does with the sum, and what it does it to; the sum begins anew."""
        rate, drop_rate = self.rate, self._drop_rate
        indices, values = None, self._sum.copy()
        if drop_rate:
            indices, values = take_large(self.residual, self._sum, self._bounds, drop_rate)
            self.acted["elements_dropped"] += self._sum.size - len(indices)
        self._sum.fill(0)

        def optimise(shard: Shard) -> None:
            number = int(shard.clock + self.pushes_before[shard.number]) + 1
            self._update(shard.vector, values[shard.part], shard.moments, number=number, rate=rate)
            if indices is None:
                np.copyto(self.seen[shard.part], shard.vector)

        def answer(part: slice, server: Vector) -> int:
            return update_view(self.seen[part], server, drop_rate) * (server.itemsize + INDEX_BYTES)

        return optimise, Where(indices=indices, answer=None if indices is None else answer)

    async def _take_over(self) -> None:
        """Wait for a push in the background, and continue from its answer."""
        if self._is_under_way:
            self._is_under_way = False
            made = await self.server.drain()
            if made is not None:
                await self._see_answer(made)

    async def _see_answer(self, made: Push) -> None:
        await self.see_after(made, since=self._clocks_of_sum)
        self.model.write(self.seen)

    @override
    async def current(self, out: Vector) -> None:
        await self.server.pull(out)

    @override
    async def add(self, change: Vector) -> None:
        await self._take_over()
        await super().add(change)

    @override
    async def quiesce(self) -> None:
        await self._take_over()
        await super().quiesce()

    @override
    async def state(self) -> dict[str, Any]:
        await self._take_over()
        return await super().state()
