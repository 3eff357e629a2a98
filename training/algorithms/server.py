"""The bases of the methods with a parameter server, whose vector is the model.

No process is a server. A worker changes a shard itself, under its lock (`training.transports.parameter_server`), and
takes the new content with it: push, answer and staleness belong to one moment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Counters, Worker
from training.algorithms.method import HostNetworkSettings, Traits
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import ParameterServer, Push, Rule, Shard


def server_traits(title: str) -> Traits:
    """The traits of a method with a server: a worker waits for nobody but at the lock of a shard."""
    return Traits(title=title, synchronous=False, equal_steps=False, server=True)


class ServerSettings(HostNetworkSettings):
    """Settings of a method with a server."""

    shards: int | None = Field(default=1, ge=1)
    """Number of parts of the server, at least 1, each with a lock and an owner; null: one for each worker."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("pushes",)


class ServerAlgorithm(Algorithm):
    """A worker with a parameter server."""

    server: ParameterServer
    """The server; from `start` on."""
    SCRATCH: ClassVar[Sequence[str]] = ("server", "clocks", "pushes_before", "_change")

    def __init__(self, settings: ServerSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.traits = settings.traits
        self.num_shards = settings.shards or self.transport.world_size
        #: Number of further vectors of the server.
        self.num_moments = 0
        #: The server when this worker last saw it, and the clocks of its shards then.
        self.seen = self.model.empty()
        self.clocks = np.zeros(self.num_shards, np.int64)
        self.pushes_before = self.clocks.copy()
        self._change = self.model.empty()
        self.staleness: Counter[int] = Counter()
        """Number of pushes to a shard by the number of pushes of others since this worker last saw it."""

    @property
    def rate(self) -> float:
        """The learning rate now."""
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    @override
    async def start(self) -> None:
        content = np.zeros((1 + self.num_moments, self.seen.size), self.seen.dtype)
        self.model.read(content[0])
        await self._begin(content)

    async def _begin(self, content: Vector) -> None:
        self.seen[:] = content[0]
        self.server = await self.make_server(content)

    async def make_server(self, content: Vector) -> ParameterServer:
        """The server; all workers together."""
        return await self.transport.parameter_server(content, shards=self.num_shards)

    async def push(self, rule: Rule, *, asks: bool = False) -> bool:
        """Change the server by a rule, and see what it is then.

        `asks`: whether not to push, if another worker is at the server.

        Returns:
            Whether the push was tried. Shards refuse what is not finite, which is counted.
        """

        def and_see(shard: Shard) -> None:
            rule(shard)
            np.copyto(self.seen[shard.part], shard.vector)

        made = await (self.server.try_push if asks else self.server.push)(and_see)
        if made is None:
            return False
        await self.see_after(made, since=self.clocks)
        return True

    async def see_after(self, made: Push, *, since: Vector) -> None:
        """Count the staleness of a push of changes since some clocks; see the server anew if it was refused."""
        is_counted = made.after > made.before
        self.staleness.update((made.before - since)[is_counted].tolist())
        self.clocks = made.after
        if not made.is_made:
            await self.see()

    async def see(self) -> None:
        """See the server as it is."""
        self.clocks = await self.server.pull(self.seen)

    @override
    async def result(self, out: Vector) -> None:
        """Copy the server; all workers together, after the last push."""
        await self.transport.barrier()
        if self.transport.rank == 0:
            await self.server.pull(out)
        await self.transport.broadcast(out)

    @override
    async def add(self, change: Vector) -> None:
        """Add to the server; each of n workers adds a part of 1 / n, so that together they add the mean.

        That is no step, so neither the clocks nor the counters count it.
        """
        part = change / self.transport.world_size

        def add(shard: Shard) -> None:
            shard.vector += part[shard.part]
            shard.counts = False

        await self._see_by(self.push(add))

    @override
    async def catch_up(self) -> None:
        await self._see_by(self.see())

    async def _see_by(self, seeing: Awaitable[object]) -> None:
        """See the server anew, and keep what this worker has not sent."""
        own = self.model.empty()
        self.model.read(own)
        own -= self.seen
        await seeing
        own += self.seen
        self.model.write(own)

    @override
    async def snapshot(self, out: Vector) -> float:
        """Copy the server as it is; the distance is that of this worker, since no other shows its model."""
        await self.server.pull(out)
        self.model.read(self._change)
        return float(np.linalg.norm(self._change - out))

    @override
    async def quiesce(self) -> None:
        await self.server.drain()
        await self.transport.barrier()

    @override
    async def close(self) -> None:
        await self.server.close()

    @override
    def counters(self) -> Counters:
        counts = self.server.counts
        return {
            **super().counters(),
            "pushes": counts.pushes,
            "pushes_refused": counts.refused,
            "pushes_put_off": counts.occupied + counts.skipped,
            "exchange_seconds": counts.exchange_seconds,
            "hidden_seconds": counts.hidden_seconds,
            "staleness": self.staleness.copy(),
        }

    @override
    async def state(self) -> dict[str, Any]:
        """The server, and the model of this worker with what it last saw of the server."""
        private = self.model.empty()
        self.model.read(private)
        published = np.empty((1 + self.num_moments, private.size), private.dtype)
        clocks = await self.server.pull(published)
        return {
            "published": published,
            "clocks": clocks + self.pushes_before,
            "private": private,
            "seen_clocks": self.clocks + self.pushes_before,
            "attributes": self.attributes(),
        }

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        """Workers that wait for nobody leave states of different times: the newest content of the server is the one."""
        published, clocks, rank = state["published"], state["clocks"], self.transport.rank
        ages = np.zeros(self.transport.world_size, np.int64)
        ages[rank] = clocks.sum()
        await self.transport.all_reduce_sum(ages)
        for each in (published, clocks):
            if rank != ages.argmax():
                each.fill(0)
            await self.transport.all_reduce_sum(each)
        await self._begin(published)
        # The clocks of a new server begin anew.
        self.pushes_before = clocks
        self.clocks = state["seen_clocks"] - self.pushes_before
        self.model.write(state["private"])
        self.restore_attributes(state["attributes"])

    @override
    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector]:
        """The server; its age is the number of pushes."""
        return int(state["clocks"].sum()), state["published"][0]


class WindowSettings(ServerSettings):
    """Settings of a method that pushes the sum of some local steps."""

    local_steps: int = Field(default=1, ge=1)
    """Number of local steps between two pushes, at least 1. The steps after the last push do not reach the server."""


class WindowAlgorithm(ServerAlgorithm):
    """Local steps from the server; their sum is pushed, and the worker continues from the new server.

    The sum is the difference of the model to the server from which it started, so it exists for each base optimiser;
    with SGD it is -eta sum_i g_i. A method says what the server adds for it. A sum that is not finite is left out.
    A window that the end of the run cuts short is not pushed: a longer run would push it later, and whole.
    """

    def __init__(self, settings: WindowSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._period = settings.local_steps
        #: Steps since the last push, and those of them with a gradient.
        self._since = self.taken = 0

    @abstractmethod
    def weighed(self, change: Vector, shard: Shard) -> Vector:
        """What the server adds to a shard for this worker's change there."""

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
            self.taken += 1
        self._since += 1
        if self._since == self._period:
            await self.exchange()

    async def exchange(self, *, asks: bool = False) -> None:
        """Push the change and continue from the server; `asks`: unless another worker is there."""
        change = self.change(self._change)
        if not is_finite(change):
            self.skipped += 1
            await self.see()
        elif not self.taken:
            await self.see()
        elif not await self.send(change, asks=asks):
            return
        self._since = self.taken = 0
        self.begin_window()

    async def send(self, change: Vector, *, asks: bool) -> bool:
        """Push a change; False: not now, since another worker is there."""

        def add(shard: Shard) -> None:
            shard.vector += self.weighed(change[shard.part], shard)

        return await self.push(add, asks=asks)

    def begin_window(self) -> None:
        """Continue from the server."""
        self.model.write(self.seen)

    def change(self, out: Vector) -> Vector:
        """The sum of the steps since the last push, into `out`."""
        self.model.read(out)
        out -= self.seen
        return out

    @override
    async def current(self, out: Vector) -> None:
        """The server as it is, and the change of this worker."""
        await self.server.pull(out)
        out += self.change(self._change)
