"""Measures a worker's time by kind of work, and the bytes that it sends, around any transport.

Every moment belongs to one kind, so that the kinds add up to the time of the run: `read`, `compute`, `communicate`,
`wait` (for others: barriers, the last worker of an all-reduce, messages of neighbours, locks), `validate` (with what
the workers send each other for that, such as the models of which it takes the mean) and `checkpoint`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from typing_extensions import override

from training.transports.basics import Vector
from training.transports.parameter_server import EVERYWHERE, VECTOR, ParameterServer, Push, Rule, ServerCounts, Where
from training.transports.transport import AverageCounts, CounterName, PendingSum, SharedVector, Transport

T = TypeVar("T")
Timed = Coroutine[Any, Any, T]
"""What the caller awaits: without a coroutine of its own around it."""


_WaitCounter = Transport | SharedVector | ParameterServer
"""Something that knows how long its owner has waited in its calls."""


class Meter:
    """Seconds by kind of work, and bytes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all = ""
        self._last = self._sign = now()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes = 0
        self.doing = "starting"
        """Current activity of the worker, for the report of a stall."""

    def restart(self) -> None:
        """Reset all counters; the clock runs on."""
        self.seconds.clear()
        self.bytes = 0

    def lap(self, kind: str) -> None:
        """Book the time since the last lap under this kind."""
        now = self._now()
        self.seconds[self._all or kind] += now - self._last
        self._last = now

    @contextmanager
    def all_is(self, kind: str) -> Iterator[None]:
        """Book all time within under this kind, communication too."""
        self._all = kind
        try:
            yield
            self.lap(kind)
        finally:
            self._all = ""

    def alive(self) -> None:
        """Report progress within long work."""
        self._sign = self._now()

    @property
    def seconds_without_sign(self) -> float:
        """Time since the last booking of this worker."""
        return self._now() - max(self._last, self._sign)

    @property
    def total_seconds(self) -> float:
        """Time of all kinds."""
        return sum(self.seconds.values())

    async def timed(self, what: str, work: Awaitable[T], waiting: _WaitCounter) -> T:
        """Await some communication; books the time before it as computation, and the part spent waiting apart."""
        self.lap("compute")
        doing, self.doing = self.doing, what
        before = waiting.waited
        result = await work
        self.doing = doing
        self._talked(waiting.waited - before)
        return result

    def begun(self, what: str, call: Callable[[], T], waiting: _WaitCounter) -> T:
        """Begin some communication by a call; books as `timed`."""
        self.lap("compute")
        doing, self.doing = self.doing, what
        before = waiting.waited
        result = call()
        self.doing = doing
        self._talked(waiting.waited - before)
        return result

    def _talked(self, waited: float) -> None:
        """Book the time since the last lap as communication, but for the part spent waiting [s]."""
        now = self._now()
        seconds = now - self._last
        waited = min(waited, seconds)
        self.seconds[self._all or "wait"] += waited
        self.seconds[self._all or "communicate"] += seconds - waited
        self._last = now


class MeteredTransport(Transport):
    """A transport that books time and bytes."""

    def __init__(self, transport: Transport, meter: Meter) -> None:
        self._transport = transport
        self._meter = meter
        self.rank = transport.rank
        self.world_size = transport.world_size

    @override
    def all_reduce_sum(self, vector: Vector) -> Timed[None]:
        """Books the bytes that a worker of a ring sends: the minimum."""
        self._meter.bytes += 2 * (self.world_size - 1) * vector.nbytes // self.world_size
        return self._meter.timed("in an all-reduce", self._transport.all_reduce_sum(vector), self._transport)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """Books the time until it is begun, and the time of waiting for its end, as communication."""
        self._meter.bytes += 2 * (self.world_size - 1) * vector.nbytes // self.world_size
        pending = self._meter.begun(
            "in an all-reduce", lambda: self._transport.begin_all_reduce(vector), self._transport
        )
        return _MeteredSum(pending, self._meter, self._transport)

    @override
    def broadcast(self, vector: Vector) -> Timed[None]:
        return self._meter.timed("in a broadcast", self._transport.broadcast(vector), self._transport)

    @override
    def barrier(self) -> Timed[None]:
        return self._meter.timed("in a barrier", self._transport.barrier(), self._transport)

    @override
    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        self._meter.bytes += vector.nbytes * len(neighbours)
        exchange = self._meter.begun(
            "sending to neighbours", lambda: self._transport.begin_exchange(vector, neighbours), self._transport
        )
        return self._meter.timed("waiting for the models of neighbours", exchange, self._transport)

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        return _MeteredVector(await self._transport.shared_vector(vector), self._meter, vector.nbytes)

    @override
    async def parameter_server(
        self, vector: Vector, *, shards: int = 1, segments: Mapping[str, float] | None = None
    ) -> ParameterServer:
        return _MeteredServer(
            await self._transport.parameter_server(vector, shards=shards, segments=segments), self._meter
        )

    @override
    def open_counters(self) -> Timed[None]:
        return self._meter.timed("opening the counters", self._transport.open_counters(), self._transport)

    @override
    def count(self, counter: CounterName, number: int) -> Timed[int]:
        return self._meter.timed("counting", self._transport.count(counter, number), self._transport)

    @override
    def now(self) -> float:
        return self._transport.now()


class _MeteredSum(PendingSum):
    """A sum that books the time of waiting for it."""

    def __init__(self, pending: PendingSum, meter: Meter, waiting: _WaitCounter) -> None:
        self._pending = pending
        self._meter = meter
        self._waiting = waiting

    @override
    def is_done(self) -> bool:
        return self._pending.is_done()

    @override
    def __await__(self) -> Generator[Any, Any, None]:
        return self._meter.timed("finishing an all-reduce", self._pending, self._waiting).__await__()


class _MeteredServer(ParameterServer):
    """A server that books time and bytes; those of a push in the background at the next call."""

    def __init__(self, server: ParameterServer, meter: Meter) -> None:
        self._server = server
        self._meter = meter
        self._booked = 0

    @property
    @override
    def counts(self) -> ServerCounts:
        return self._server.counts

    @property
    @override
    def is_under_way(self) -> bool:
        return self._server.is_under_way

    @override
    async def pull(self, out: Vector, *, segment: str = VECTOR) -> Vector:
        return await self._timed("reading the server", self._server.pull(out, segment=segment))

    @override
    async def push(self, rule: Rule, where: Where = EVERYWHERE) -> Push:
        return await self._timed("changing the server", self._server.push(rule, where))

    @override
    async def try_push(self, rule: Rule, where: Where = EVERYWHERE) -> Push | None:
        return await self._timed("changing the server", self._server.try_push(rule, where))

    @override
    def begin_push(self, rule: Rule, where: Where = EVERYWHERE) -> bool:
        return self._meter.begun("pushing to the server", lambda: self._server.begin_push(rule, where), self._server)

    @override
    async def drain(self) -> Push | None:
        return await self._timed("finishing a push", self._server.drain())

    @override
    def close(self) -> Timed[None]:
        return self._timed("closing the server", self._server.close())

    async def _timed(self, what: str, work: Awaitable[T]) -> T:
        result = await self._meter.timed(what, work, self._server)
        sent = self._server.counts.bytes
        self._meter.bytes += sent - self._booked
        self._booked = sent
        return result


class _MeteredVector(SharedVector):
    """A shared vector that books time and bytes."""

    def __init__(self, shared: SharedVector, meter: Meter, nbytes: int) -> None:
        self._shared = shared
        self._meter = meter
        self._nbytes = nbytes

    @property
    def counts(self) -> AverageCounts:
        return self._shared.counts

    def read(self, out: Vector) -> Timed[int]:
        return self._meter.timed("reading the own model", self._shared.read(out), self._shared)

    def read_of(self, rank: int, out: Vector) -> Timed[None]:
        self._meter.bytes += self._nbytes
        return self._meter.timed(f"reading the model of rank {rank}", self._shared.read_of(rank, out), self._shared)

    def add(self, change: Vector) -> Timed[int]:
        return self._meter.timed("changing the own model", self._shared.add(change), self._shared)

    def average_with(self, partner: int) -> Timed[None]:
        # An average receives the partner's vector and sends its change.
        self._meter.bytes += 2 * self._nbytes
        return self._meter.timed(f"averaging with rank {partner}", self._shared.average_with(partner), self._shared)

    async def begin_average_with(self, partner: int) -> bool:
        begun = self._shared.begin_average_with(partner)
        is_begun = await self._meter.timed(f"averaging with rank {partner}", begun, self._shared)
        self._meter.bytes += 2 * self._nbytes * is_begun
        return is_begun

    def drain(self) -> Timed[None]:
        return self._meter.timed("finishing averages", self._shared.drain(), self._shared)

    def close(self) -> Timed[None]:
        return self._meter.timed("closing the shared model", self._shared.close(), self._shared)
