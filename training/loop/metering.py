"""Measures a worker's time by kind of work, and the bytes that it sends, around any transport.

Every moment belongs to one category, so that these add up to the time of the run: `read`,
`compute`, `communicate`, `wait` (for others: barriers, the last worker of an all-reduce, messages
of neighbours, locks), `validate` (with the messages for it, such as the models that are averaged)
and `checkpoint`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from typing_extensions import override

from training.errors import TrainingError
from training.transports.basics import ExchangeCounts, Vector
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import ALL_SHARDS, Push, Rule, ShardSelection
from training.transports.transport import CounterName, PendingSum, SharedVector, Transport

Waiting = Transport | SharedVector | ParameterServer
"""An object whose `waited` is the time that its owner has waited in its calls [s]."""


class Meter:
    """Counts a worker's seconds by kind of work, and the bytes that it sends.

    A lap ends a piece of work: it records the time since the lap before under a kind. So each
    moment is recorded once.

    `now`: the clock [s].
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._only_category = ""
        """The kind that gets all time at the moment; empty for none."""
        self._last_lap = self._last_sign = now()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Time of each kind since `restart` [s]."""
        self.bytes = 0
        """Number of bytes that the worker has sent since `restart`."""
        self.doing = "starting"
        """Current activity of the worker, for the report of a stall."""

    def restart(self) -> None:
        """Reset all counters; the clock runs on."""
        self.seconds.clear()
        self.bytes = 0

    def record(self, category: str, seconds: float) -> None:
        """Add time to a kind of work, or to the kind that gets all time at the moment."""
        self.seconds[self._only_category or category] += seconds

    def lap(self, category: str) -> None:
        """Record the time since the last lap under this kind."""
        now = self._now()
        self.record(category, now - self._last_lap)
        self._last_lap = now

    @contextmanager
    def attribute_all_to(self, category: str) -> Iterator[None]:
        """Record all time within the context under this kind, communication too."""
        self._only_category = category
        try:
            yield
            self.lap(category)
        finally:
            self._only_category = ""

    def communicating(self, activity: str, waiting: Waiting) -> _Communication:
        """Return a context that records one communication.

        The time before it counts as computation. Of the time in it, what `waiting` has waited for
        others counts as waiting, and the rest as communication. `activity` is shown in the report
        of a stall.
        """
        return _Communication(self, activity, waiting)

    def record_communication(self, waited: float) -> None:
        """Record the time since the last lap as communication, of which `waited` [s] as waiting."""
        now = self._now()
        seconds = now - self._last_lap
        waited = min(waited, seconds)
        self.record("wait", waited)
        self.record("communicate", seconds - waited)
        self._last_lap = now

    def alive(self) -> None:
        """Note progress within long work, so that it does not seem to be a stall."""
        self._last_sign = self._now()

    @property
    def last_sign(self) -> float:
        """Time of the last lap or call of `alive`, on the clock of the meter [s]."""
        return max(self._last_lap, self._last_sign)

    @property
    def seconds_without_sign(self) -> float:
        """Time since the last lap or call of `alive` [s]."""
        return self._now() - self.last_sign

    @property
    def total_seconds(self) -> float:
        """Time of all kinds since `restart` [s]."""
        return sum(self.seconds.values())


class _Communication:
    """The context of `Meter.communicating`.

    It is a class, since a generator takes three times as long.
    """

    def __init__(self, meter: Meter, activity: str, waiting: Waiting) -> None:
        self._meter, self._activity, self._waiting = meter, activity, waiting

    def __enter__(self) -> None:
        meter = self._meter
        meter.lap("compute")
        self._doing_before, meter.doing = meter.doing, self._activity
        self._waited_before = self._waiting.waited

    def __exit__(self, *_: object) -> None:
        self._meter.doing = self._doing_before
        self._meter.record_communication(self._waiting.waited - self._waited_before)


class MeteredTransport(Transport):
    """A transport that records time and bytes."""

    def __init__(self, transport: Transport, meter: Meter) -> None:
        self._transport, self._meter = transport, meter
        self.rank, self.world_size = transport.rank, transport.world_size

    @override
    def now(self) -> float:
        return self._transport.now()

    @override
    async def broadcast(self, vector: Vector) -> None:
        with self._meter.communicating("in a broadcast", self._transport):
            await self._transport.broadcast(vector)

    @override
    async def barrier(self) -> None:
        with self._meter.communicating("in a barrier", self._transport):
            await self._transport.barrier()

    @override
    async def open_counters(self) -> None:
        with self._meter.communicating("opening the counters", self._transport):
            await self._transport.open_counters()

    @override
    async def count(self, counter: CounterName, amount: int) -> int:
        with self._meter.communicating("counting", self._transport):
            return await self._transport.count(counter, amount)

    @override
    async def all_reduce_sum(self, vector: Vector) -> None:
        self._count_sum(vector)
        with self._meter.communicating("in an all-reduce", self._transport):
            await self._transport.all_reduce_sum(vector)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """Records the time of its begin and the time of waiting for its end as communication."""
        self._count_sum(vector)
        with self._meter.communicating("in an all-reduce", self._transport):
            pending = self._transport.begin_all_reduce(vector)
        return _MeteredSum(pending, self._meter, self._transport)

    def _count_sum(self, vector: Vector) -> None:
        """Count the bytes that each worker sends in an all-reduce over a ring, the fewest possible.

        In a ring of n workers, each sends n - 1 times an n-th of the vector to add up, and as much
        to spread the sum.

        Raises:
            TrainingError: MPI cannot add up such vectors.
        """
        _require_summable(vector)
        self._meter.bytes += 2 * (self.world_size - 1) * vector.nbytes // self.world_size

    @override
    def begin_exchange(
        self, vector: Vector, neighbours: Sequence[int], *, senders: Sequence[int] | None = None
    ) -> Awaitable[list[Vector]]:
        self._meter.bytes += vector.nbytes * len(neighbours)
        with self._meter.communicating("sending to neighbours", self._transport):
            exchange = self._transport.begin_exchange(vector, neighbours, senders=senders)
        return self._finish_exchange(exchange)

    async def _finish_exchange(self, exchange: Awaitable[list[Vector]]) -> list[Vector]:
        with self._meter.communicating("waiting for the models of neighbours", self._transport):
            return await exchange

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        shared = await self._transport.shared_vector(vector)
        return MeteredVector(shared, self._meter, vector.nbytes, self.world_size)

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        server = await self._transport.parameter_server(content, shards=shards)
        return MeteredServer(server, self._meter)


class _MeteredSum(PendingSum):
    """An all-reduce under way that records the time of waiting for its end."""

    def __init__(self, pending: PendingSum, meter: Meter, waiting: Waiting) -> None:
        self._pending, self._meter, self._waiting = pending, meter, waiting

    @override
    def is_done(self) -> bool:
        return self._pending.is_done()

    @override
    async def wait(self) -> None:
        with self._meter.communicating("finishing an all-reduce", self._waiting):
            await self._pending


class MeteredServer(ParameterServer):
    """A parameter server that records time and bytes.

    The bytes of a push in the background are counted at the next call.
    """

    def __init__(self, server: ParameterServer, meter: Meter) -> None:
        self._server, self._meter = server, meter
        self.layout, self.rank = server.layout, server.rank
        self._counted_bytes = 0

    @property
    @override
    def counts(self) -> ExchangeCounts:
        return self._server.counts

    @property
    @override
    def is_under_way(self) -> bool:
        return self._server.is_under_way

    @override
    def is_in_memory(self, shard: int) -> bool:
        return self._server.is_in_memory(shard)

    @override
    async def pull(self, out: Vector) -> Vector:
        with self._meter.communicating("reading the server", self._server):
            clocks = await self._server.pull(out)
        self._count_new_bytes()
        return clocks

    @override
    async def push(self, rule: Rule, selection: ShardSelection = ALL_SHARDS) -> Push:
        with self._meter.communicating("changing the server", self._server):
            push = await self._server.push(rule, selection)
        self._count_new_bytes()
        return push

    @override
    async def try_push(self, rule: Rule, selection: ShardSelection = ALL_SHARDS) -> Push | None:
        with self._meter.communicating("changing the server", self._server):
            push = await self._server.try_push(rule, selection)
        self._count_new_bytes()
        return push

    @override
    def begin_push(self, rule: Rule, selection: ShardSelection = ALL_SHARDS) -> bool:
        with self._meter.communicating("pushing to the server", self._server):
            return self._server.begin_push(rule, selection)

    @override
    async def drain(self) -> Push | None:
        with self._meter.communicating("finishing a push", self._server):
            push = await self._server.drain()
        self._count_new_bytes()
        return push

    @override
    async def close(self) -> None:
        with self._meter.communicating("closing the server", self._server):
            await self._server.close()
        self._count_new_bytes()

    def _count_new_bytes(self) -> None:
        """Add the bytes that the server's counter shows beyond those of the last call."""
        sent_bytes = self._server.counts.bytes
        self._meter.bytes += sent_bytes - self._counted_bytes
        self._counted_bytes = sent_bytes


def _require_summable(vector: object) -> None:
    """Raise TrainingError unless MPI, and so each transport, can add up such vectors."""
    if not isinstance(vector, np.ndarray):
        problem = f"an object of the type {type(vector).__name__}"
    elif vector.dtype.kind not in "iufc" or not vector.dtype.isnative:
        problem = f"numbers of the type {vector.dtype}"
    elif not vector.flags.c_contiguous:
        # MPI adds up memory, so that ranks with other orders would mix elements.
        problem = (
            "an array that is not contiguous in the order of C, such as a transposed matrix or "
            "every second element of another array"
        )
    else:
        return
    raise TrainingError(
        f"an all-reduce cannot add up {problem}. Give it a contiguous array of numpy, as by "
        f"`model.empty()` or `np.ascontiguousarray`; the sum replaces its content"
    )


class MeteredVector(SharedVector):
    """A shared vector of `nbytes` among some workers that records time and bytes.

    The bytes are those of averages that were made, not of those that were skipped, refused or lost.
    Those of an average in the background are counted at the first call after it.
    """

    def __init__(self, vector: SharedVector, meter: Meter, nbytes: int, world_size: int) -> None:
        self._vector, self._meter, self._nbytes = vector, meter, nbytes
        self._world_size = world_size
        self._counted_averages = 0

    @property
    @override
    def counts(self) -> ExchangeCounts:
        return self._vector.counts

    @override
    async def read(self, out: Vector) -> int:
        with self._meter.communicating("reading the own model", self._vector):
            return await self._vector.read(out)

    @override
    async def add(self, change: Vector) -> int:
        with self._meter.communicating("changing the own model", self._vector):
            return await self._vector.add(change)

    def _require_rank(self, rank: int) -> None:
        """Raise TrainingError unless there is such a rank; a transport would count it as lost."""
        if not 0 <= rank < self._world_size:
            raise TrainingError(
                f"there is no rank {rank} to exchange the model with: the ranks are 0 to "
                f"{self._world_size - 1}"
            )

    @override
    async def read_from_rank(self, rank: int, out: Vector) -> None:
        self._require_rank(rank)
        self._meter.bytes += self._nbytes
        with self._meter.communicating(f"reading the model of rank {rank}", self._vector):
            await self._vector.read_from_rank(rank, out)

    @override
    async def average_with(self, partner: int) -> None:
        self._require_rank(partner)
        with self._meter.communicating(f"averaging with rank {partner}", self._vector):
            await self._vector.average_with(partner)
        self._count_new_averages()

    @override
    async def begin_average_with(self, partner: int) -> bool:
        self._require_rank(partner)
        with self._meter.communicating(f"averaging with rank {partner}", self._vector):
            is_begun = await self._vector.begin_average_with(partner)
        self._count_new_averages()
        return is_begun

    @override
    async def drain(self) -> None:
        with self._meter.communicating("finishing averages", self._vector):
            await self._vector.drain()
        self._count_new_averages()

    @override
    async def close(self) -> None:
        with self._meter.communicating("closing the shared model", self._vector):
            await self._vector.close()
        self._count_new_averages()

    def _count_new_averages(self) -> None:
        """Add the bytes of the averages that this worker has made since the last call."""
        num_averages = self._vector.counts.begun
        # An average receives the partner's vector and sends its change.
        self._meter.bytes += 2 * self._nbytes * (num_averages - self._counted_averages)
        self._counted_averages = num_averages
