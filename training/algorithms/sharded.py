"""Asynchronous SGD with optimisers at the shards of a server.

Source: Neckermann 2017, Algorithms 4 to 6, 8 and 9.
"""

from __future__ import annotations

import math
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
from training.transports.parameter_server import Layout
from training.transports.pushes import ALL_SHARDS, INDEX, Push, Rule, Shard, ShardSelection

#: Number of elements in the sample that gives the threshold; the exact one takes as long as a sort.
_SAMPLE_SIZE: Final = 100_000


def largest(values: Vector, drop_rate: float) -> Vector:
    """Return the indices of the elements of largest magnitude, in ascending order, as int32.

    An element is kept if its magnitude is above a threshold. The threshold is the quantile of the
    magnitudes at `drop_rate`, in a sample of at most 100,000 evenly spaced elements. So the number
    of kept elements is only about (1 - drop_rate) n.

    `values`: (n,).

    Examples:
        >>> largest(np.array([0.1, -3.0, 2.0, 0.0]), 0.5).tolist()
        [1, 2]
        >>> largest(np.array([0.1, -3.0]), 0.0).tolist()
        [0, 1]
    """
    magnitudes = np.abs(values)
    stride = max(1, math.ceil(len(values) / _SAMPLE_SIZE))
    sample = magnitudes[::stride]
    # Position, in the sorted sample, of the largest magnitude that is dropped.
    last_dropped = int(len(sample) * drop_rate) - 1
    if last_dropped < 0:
        return np.arange(len(values), dtype=INDEX)
    threshold = np.partition(sample, last_dropped)[last_dropped]
    return np.flatnonzero(magnitudes > threshold).astype(INDEX)


def take_large(
    residual: Vector, gradient: Vector, bounds: Sequence[int], drop_rate: float
) -> tuple[Vector, Vector]:
    """Take the largest elements of residual + gradient, which are to be sent.

    The other elements stay in the residual, which is changed in place, so that nothing is lost.

    `residual`, `gradient`: (n,). `bounds`: where the shards begin, and n; each shard has its own
    threshold. `drop_rate`: fraction of the elements that stay.

    Returns:
        (k,) indices in ascending order, and (k,) values of the elements to send.

    Examples:
        >>> residual = np.zeros(4)
        >>> gradient = np.array([1.0, 5.0, 3.0, 2.0])
        >>> indices, values = take_large(residual, gradient, [0, 2, 4], 0.5)
        >>> indices.tolist(), values.tolist(), residual.tolist()
        ([1, 2], [5.0, 3.0], [1.0, 0.0, 0.0, 2.0])
    """
    residual += gradient
    indices_by_shard = []
    for start, stop in pairwise(bounds):
        indices_by_shard.append(largest(residual[start:stop], drop_rate) + start)
    indices = np.concatenate(indices_by_shard)
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def update_view(view: Vector, values: Vector, drop_rate: float) -> int:
    """Set a worker's view of a shard to the shard's values, where the difference is large.

    The view is what the worker knows of the shard. The changes that were not sent yet are
    values - view, so they need no memory of their own.

    `view`: (n,) changed in place. `values`: (n,) the shard. `drop_rate`: fraction of the elements
    that stay as they are.

    Returns:
        The number of elements that changed.

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
            lambda settings: settings.overlap == "thread",
        )
        for key in ("bound", "applies_sum", "local_optimizer")
    )
    shards: int | None = Field(default=None, ge=1)
    """Number of parts of the server, each with a lock, an owner and the optimiser's state; null:
    one per worker."""
    overlap: Literal["thread", "inline"] = "inline"
    """When gradients travel: in a `thread` while the next ones are computed and summed, or before
    that."""
    bound: int | None = Field(default=None, ge=1)
    """Highest number of steps during one exchange with `overlap: thread`; then the worker waits.
    Null: no bound."""
    drop_rate: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the elements of a gradient that wait for a later one, and of the changes of the
    server that wait for a later answer, because they are small; at least 0 and below 1, such as
    0.99."""

    applies_sum: bool = False
    """Whether a worker makes a step of its own with its summed gradients from the answer, which
    does not have them yet; needs `overlap: thread`."""
    local_optimizer: bool = False
    """Whether a worker makes steps of its own during an exchange, which the answer replaces; needs
    `overlap: thread`."""

    @property
    @override
    def transport_options(self) -> TransportOptions:
        return TransportOptions(background=self.overlap == "thread", network=self.network)

    @override
    def smallest_message(self, workers: int) -> float:
        return (1 - self.drop_rate) * super().smallest_message(workers)

    @property
    @override
    def counters(self) -> tuple[str, ...]:
        if self.drop_rate:
            return (*super().counters, "elements_dropped")
        return super().counters


@algorithm(
    "sharded", ShardedSettings, replace(server_traits("Sharded server"), server_optimizer=True)
)
class Sharded(ServerAlgorithm):
    """Push gradients to the server, whose optimiser steps; its answer is the worker's next model.

    server <- server + u(g), with u = -eta g for SGD; x <- server (Algorithm 4). g is the gradient
    at the worker's model x, and eta the learning rate.

    With `overlap: thread`, the worker computes gradients at the same x while a push is under way,
    and sums them (Algorithms 5 and 6). With `local_optimizer` it makes steps of its own from x
    meanwhile. With `applies_sum` it makes a step with the sum that it sends, from the x of the
    answer before, which does not have this sum yet (section 3.4).

    With a `drop_rate`, only the largest elements of g + residual travel, and the optimiser leaves
    all others as they are. The residual is what did not travel before. The answer has the largest
    elements of server - x, since x is what the worker knows of the server (Algorithms 8 and 9,
    whose last answer and residual are x).
    """

    SCRATCH = ("_update", "_clocks_of_sum")
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: ShardedSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._update = worker.update
        self.num_moments = len(self._update.moments)
        self._overlaps = settings.overlap == "thread"
        self._bound = settings.bound
        self._applies_sum = settings.applies_sum
        self._has_local_optimizer = settings.local_optimizer
        self._drop_rate = settings.drop_rate
        #: Sum of the gradients since the last push began.
        self._sum = self.model.empty()
        self._sum.fill(0)
        self.residual = self.model.empty()
        """(num_parameters,) elements of earlier gradients that were dropped, and so wait."""
        self.residual.fill(0)
        self._bounds = Layout(self._sum.size, self.num_shards).bounds
        #: Number of steps since the last push began.
        self._steps_in_sum = 0
        #: Number of them with a gradient.
        self._gradients_in_sum = 0
        #: Whether a push was begun whose answer this worker has not used yet.
        self._push_is_under_way = False
        #: Clocks of the server when this worker copied the model of the pushed gradients.
        self._clocks_of_sum = self.pulled_clocks

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Add the gradient to the sum, and exchange unless a push is still under way."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.model.read_gradient(self._change)
            self._sum += self._change
            self._gradients_in_sum += 1
            if self._has_local_optimizer:
                self.optimizer.step()
        self._steps_in_sum += 1
        if not self._computes_on():
            await self._exchange()

    def _computes_on(self) -> bool:
        """Return whether the worker takes another step before it exchanges.

        It does while its last push is under way, up to `bound` steps.
        """
        is_under_way = self._push_is_under_way and self.server.is_under_way
        return is_under_way and (self._bound is None or self._steps_in_sum < self._bound)

    async def _exchange(self) -> None:
        """Continue from the answer to the last push, then push the sum of the gradients.

        The gradients of the sum belong to the model before that answer. Without any gradient the
        worker only pulls. Without overlap, the answer to the new push is used at once.
        """
        # The next line replaces the clocks by those of the answer.
        clocks_of_sum = self.pulled_clocks
        await self._finish_push()
        if not self._gradients_in_sum:
            await self.pull()
            self.model.write(self.pulled)
            return
        self._clocks_of_sum = clocks_of_sum
        # The answer that comes next has this step; until then the worker has it in its own model.
        if self._applies_sum and self._overlaps:
            self.model.write_gradient(self._sum)
            self.optimizer.step()

        rule, selection = self._message()
        self._sum.fill(0)
        self._steps_in_sum = 0
        self._gradients_in_sum = 0
        if self._overlaps:
            self._push_is_under_way = self.server.begin_push(rule, selection)
        else:
            await self._continue_from(await self.server.push(rule, selection))

    def _message(self) -> tuple[Rule, ShardSelection]:
        """Return the rule that makes a step with the sum, and the elements that travel.

        Without dropping, all elements travel, and the rule copies the result into `pulled`. With
        dropping, the small elements move into the residual, and an answer updates `pulled`.
        """
        if not self._drop_rate:
            # A copy, since the worker sums on while the push is under way.
            return self._optimizer_step(self._sum.copy(), copies_result=True), ALL_SHARDS
        indices, values = take_large(self.residual, self._sum, self._bounds, self._drop_rate)
        self.actions["elements_dropped"] += self._sum.size - len(indices)

        # This stands in for a server that sends only the changed elements: it returns their bytes.
        def answer(elements: slice, server: Vector) -> int:
            num_sent = update_view(self.pulled[elements], server, self._drop_rate)
            return num_sent * (server.itemsize + INDEX.itemsize)

        rule = self._optimizer_step(values, copies_result=False)
        return rule, ShardSelection(indices=indices, answer=answer)

    def _optimizer_step(self, gradient: Vector, *, copies_result: bool) -> Rule:
        """Return the rule that takes a step of the base optimiser with a gradient.

        `gradient`: (num_parameters,), or (k,) for the k elements that travel. `copies_result`:
        whether the new values of the shard are copied into `pulled`.
        """
        # The rate of now, since the push may be made later.
        rate = self.learning_rate

        def optimize(shard: Shard) -> None:
            # Adam needs the number of the step; each push to the shard is one.
            step = int(shard.clock + self.pushes_before[shard.index]) + 1
            self._update(
                shard.vector, gradient[shard.elements], shard.moments, step=step, rate=rate
            )
            if copies_result:
                np.copyto(self.pulled[shard.elements], shard.vector)

        return optimize

    async def _finish_push(self) -> None:
        """Wait for the push in the background, if there is one, and continue from its answer."""
        if self._push_is_under_way:
            self._push_is_under_way = False
            push = await self.server.drain()
            if push is not None:
                await self._continue_from(push)

    async def _continue_from(self, push: Push) -> None:
        """Count the staleness of a push, and set the model to the server as the push left it."""
        await self.record_staleness(push, since=self._clocks_of_sum)
        self.model.write(self.pulled)

    @override
    async def current(self, out: Vector) -> None:
        await self.server.pull(out)

    @override
    async def add(self, change: Vector) -> None:
        await self._finish_push()
        await super().add(change)

    @override
    async def quiesce(self) -> None:
        await self._finish_push()
        await super().quiesce()

    @override
    async def state(self) -> dict[str, Any]:
        await self._finish_push()
        return await super().state()
