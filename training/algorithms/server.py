"""The bases of the methods with a parameter server, whose vector is the model.

No process is a server. A worker changes a shard itself, under its lock
(`training.transports.parameter_server`), and copies the new content at once: push, answer and
staleness belong to one moment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Counters, Worker
from training.algorithms.method import HostNetworkSettings, Traits
from training.errors import TrainingError
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.pushes import Push, Rule, Shard


def server_traits(title: str) -> Traits:
    """Return the traits of a method with a server, whose workers wait only for a shard's lock.

    `title`: name of the method in tables and figures.
    """
    return Traits(title=title, synchronous=False, equal_steps=False, server=True)


class ServerSettings(HostNetworkSettings):
    """Settings of a method with a server."""

    shards: int | None = Field(default=1, ge=1)
    """Number of parts of the server, at least 1, each with a lock and an owner; null: one for each
    worker."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("pushes",)

    @override
    def smallest_message(self, workers: int) -> float:
        return 1 / (self.shards or workers)


class ServerAlgorithm(Algorithm):
    """A worker with a parameter server: a vector that all workers share, divided into shards.

    To pull is to copy the server; to push is to change it by a rule. Each shard has a clock, which
    counts its pushes. A push is stale by the number of pushes of others since this worker's last
    copy.
    """

    server: ParameterServer
    """The server; from `start` on."""
    SCRATCH: ClassVar[Sequence[str]] = ("server", "pulled_clocks", "pushes_before", "_change")
    """Attributes that checkpoints leave out; `state` adds the server and all clocks."""

    def __init__(self, settings: ServerSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.traits = settings.traits
        self.num_shards = settings.shards or self.transport.world_size
        self.num_moments = 0
        """Number of vectors at the server beside the model: moments of an optimiser there."""
        self.pulled = self.model.empty()
        """(num_parameters,) the server when this worker last copied it."""
        self.pulled_clocks = np.zeros(self.num_shards, np.int64)
        """(num_shards,) the clocks of its shards then."""
        self.pushes_before = self.pulled_clocks.copy()
        """(num_shards,) pushes to each shard in the run that this one resumes."""
        #: Room for a change of the model, which each step overwrites.
        self._change = self.model.empty()
        self.staleness: Counter[int] = Counter()
        """Number of pushes to a shard by the number of pushes of others since this worker's last
        copy."""

    @override
    async def start(self) -> None:
        """Make the server with this worker's model, and moments of 0; all workers together."""
        content = np.zeros((1 + self.num_moments, self.pulled.size), self.pulled.dtype)
        self.model.read(content[0])
        await self._share(content)

    async def _share(self, content: Vector) -> None:
        """Make the server with this content, (1 + num_moments, num_parameters)."""
        self.pulled[:] = content[0]
        self.server = await self.make_server(content)

    async def make_server(self, content: Vector) -> ParameterServer:
        """Make the server; all workers together."""
        return await self.transport.parameter_server(content, shards=self.num_shards)

    async def pull(self) -> None:
        """Copy the server as it is now into `pulled`; the local model stays as it is."""
        self.pulled_clocks = await self.server.pull(self.pulled)

    async def push(self, rule: Rule) -> None:
        """Change the server by a rule, and copy the result into `pulled`.

        A shard refuses a result that is not finite: it stays as it was, and the refusal is counted.
        """
        push = await self.server.push(self._and_copy(rule))
        await self.record_staleness(push, since=self.pulled_clocks)

    async def try_push(self, rule: Rule) -> bool:
        """Push like `push`, unless another worker has a lock; return whether it was tried."""
        push = await self.server.try_push(self._and_copy(rule))
        if push is None:
            return False
        await self.record_staleness(push, since=self.pulled_clocks)
        return True

    def _and_copy(self, rule: Rule) -> Rule:
        """Return a rule that applies another one and copies the result into `pulled`.

        Both happen under the lock of the shard, so no other push comes in between.
        """

        def apply_and_copy(shard: Shard) -> None:
            rule(shard)
            np.copyto(self.pulled[shard.elements], shard.vector)

        return apply_and_copy

    async def record_staleness(self, push: Push, *, since: Vector) -> None:
        """Count the staleness of a push, and take over its clocks as those of the last copy.

        `since`: (num_shards,) the clocks of the copy from which the pushed change was computed.
        """
        self.staleness.update(push.staleness(since))
        self.pulled_clocks = push.clocks_after
        # The copy of a shard that refused holds the refused result.
        if not push.is_accepted:
            await self.pull()

    @override
    async def result(self, out: Vector) -> None:
        """Copy the server into `out`; all workers together, after the last push."""
        await self.transport.barrier()
        if self.transport.rank == 0:
            await self.server.pull(out)
        await self.transport.broadcast(out)

    @override
    async def add(self, change: Vector) -> None:
        """Add a change to the server.

        Each of n workers adds 1 / n of its change, so that together they add the mean. This is no
        step of the method, so neither the clocks nor the counters count it. The worker continues
        from the new server, with the steps that it has not sent.
        """
        share = change / self.transport.world_size

        def add_share(shard: Shard) -> None:
            shard.vector += share[shard.elements]
            shard.counts = False

        # The push replaces `pulled`, to which the unsent steps refer.
        unsent = self._unsent_change()
        await self.push(add_share)
        self.model.write(self.pulled + unsent)

    @override
    async def catch_up(self) -> None:
        """Pull the server, and keep the steps that this worker has not sent."""
        unsent = self._unsent_change()
        await self.pull()
        self.model.write(self.pulled + unsent)

    def _unsent_change(self) -> Vector:
        """Return the local model minus the server that this worker copied last."""
        change = self.model.empty()
        self.model.read(change)
        change -= self.pulled
        return change

    @override
    async def snapshot(self, out: Vector) -> float:
        """Copy the server as it is, and return the distance of this worker's model from it.

        The other workers' models do not count, since nobody can read them.
        """
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
        """Return the counts since the start; see `ExchangeCounts` for those of the server."""
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
        """Return the server, the model of this worker, and the attributes with its last copy.

        `published` is the server, (1 + num_moments, num_parameters), and `private` the model. All
        clocks count from the first run, also after a resume.
        """
        private = self.model.empty()
        self.model.read(private)
        published = np.empty((1 + self.num_moments, private.size), private.dtype)
        clocks = await self.server.pull(published)
        return {
            "published": published,
            "clocks": clocks + self.pushes_before,
            "private": private,
            "pulled_clocks": self.pulled_clocks + self.pushes_before,
            "attributes": self.state_dict(),
        }

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        """Start from the newest content of the server in the states of all workers.

        Workers that wait for nobody leave states of different times. `published` and `clocks` in
        `state` are overwritten by the newest.
        """
        published, clocks = state["published"], state["clocks"]
        await self._broadcast_newest(published, clocks)
        await self._share(published)
        # The clocks of a new server begin at 0.
        self.pushes_before = clocks
        self.pulled_clocks = state["pulled_clocks"] - self.pushes_before
        self.model.write(state["private"])
        self.load_state_dict(state["attributes"])

    async def _broadcast_newest(self, published: Vector, clocks: Vector) -> None:
        """Replace content and clocks of the server by those of the worker with the most pushes.

        Both arrays are changed in place; all workers call it together.
        """
        rank = self.transport.rank
        # Each worker fills in its own number of pushes, so the sum gives all numbers to all.
        ages = np.zeros(self.transport.world_size, np.int64)
        ages[rank] = clocks.sum()
        await self.transport.all_reduce_sum(ages)
        # The sum of zeros and of the newest content is the newest content.
        for array in (published, clocks):
            if rank != ages.argmax():
                array.fill(0)
            await self.transport.all_reduce_sum(array)

    @override
    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector]:
        """Return the number of pushes to all shards, and the model at the server."""
        return int(state["clocks"].sum()), state["published"][0]


class WindowSettings(ServerSettings):
    """Settings of a method that pushes the sum of some local steps."""

    local_steps: int = Field(default=1, ge=1)
    """Number of local steps between two pushes, at least 1. The steps after the last push do not
    reach the server."""


class WindowAlgorithm(ServerAlgorithm):
    """A worker that takes some local steps from the server, and then pushes their sum.

    These steps are a window. After the push the worker continues from the new server. The sum is
    the difference of the model to the server from which it started, so it exists for each base
    optimiser; with SGD it is -eta sum_i g_i. A method defines what the server adds for it.

    A sum that is not finite is left out. A window that the end of the run cuts short is not pushed:
    a longer run would push it later, when it is complete.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_slices",)
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: WindowSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._local_steps = settings.local_steps
        self.steps_in_window = 0
        """Number of steps since the last push."""
        self.gradients_in_window = 0
        """Number of these steps that had a gradient; the others had no events or no finite one."""
        self._slices = Layout(self.pulled.size, self.num_shards).slices

    @abstractmethod
    def server_update(self, change: Vector, shard: Shard) -> Vector:
        """Return what the server adds to a shard for this worker's change of it.

        `change`: (n,) sum of the steps of the window, for the elements of the shard. `shard`: the
        shard before the push, under its lock; its moments may be changed in place.
        """

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step; after the last one of a window, push their sum."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
            self.gradients_in_window += 1
        self.steps_in_window += 1
        if self.steps_in_window == self._local_steps:
            await self.end_window()

    async def end_window(self) -> None:
        """Push the sum of the window's steps, and begin the next window from the server.

        Without a finite change the worker only pulls. If the push is put off, the window continues.
        """
        change = self.window_change(self._change)
        if not is_finite(change):
            self.num_steps_not_finite += 1
            await self.pull()
        elif not self.gradients_in_window:
            await self.pull()
        elif not await self.push_window(change):
            return
        self.begin_window()

    async def push_window(self, change: Vector) -> bool:
        """Push the change of a window; return False if the push is put off.

        The window then continues. This class never puts a push off.
        """
        await self.push(self.rule_to_add(change))
        return True

    def rule_to_add(self, change: Vector) -> Rule:
        """Return the rule that adds this worker's change to the server."""

        def add(shard: Shard) -> None:
            self._add_update(change[shard.elements], shard)

        return add

    def _add_update(self, change: Vector, shard: Shard) -> None:
        """Add what `server_update` returns to a shard.

        Raises:
            TrainingError: It has another shape than the shard.
        """
        update = self.server_update(change, shard)
        if np.shape(update) != shard.vector.shape:
            raise TrainingError(
                f"{type(self).__name__}.server_update returns {type(update).__name__} of shape "
                f"{np.shape(update)} for a change of shape {shard.vector.shape}. Return the array "
                f"to add to the shard"
            )
        shard.vector += update

    def begin_window(self) -> None:
        """Continue from the last copy of the server, with counts of 0."""
        self.steps_in_window = 0
        self.gradients_in_window = 0
        self.model.write(self.pulled)

    def window_change(self, out: Vector) -> Vector:
        """Write the sum of the steps since the last push into `out`, and return it."""
        self.model.read(out)
        out -= self.pulled
        return out

    @override
    async def current(self, out: Vector) -> None:
        """Copy the server into `out`, as a push of this worker's unsent steps would leave it.

        Nothing is pushed: the method's rule is applied to the copy, shard by shard.
        """
        content = np.empty((1 + self.num_moments, out.size), out.dtype)
        clocks = await self.server.pull(content)
        np.copyto(out, content[0])
        if not self.gradients_in_window:
            return
        change = self.window_change(self._change)
        for index, elements in enumerate(self._slices):
            # A view of the copy, so that the rule changes `out`.
            vector, moments = out[elements], content[1:, elements]
            shard = Shard(index, int(clocks[index]), elements, vector, moments, counts=False)
            self._add_update(change[elements], shard)
