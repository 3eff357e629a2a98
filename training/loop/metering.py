"""Measures a worker's time by kind of work, and the bytes that it sends, around any transport.

Every moment belongs to one kind, so that the kinds add up to the time of the run: `read`, `compute`, `communicate`,
`wait` (for others: barriers, the last worker of an all-reduce, messages of neighbours, locks), `validate` (with what
the workers send each other for that, such as the models of which it takes the mean) and `checkpoint`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from typing_extensions import override

from training.transports.basics import Vector
from training.transports.parameter_server import ParameterServer
from training.transports.transport import PendingSum, SharedVector, Transport

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
    def attribute_all_to(self, kind: str) -> Iterator[None]:
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


def _timed(name: str, doing: str, *, vectors: int = 0) -> Any:
    """The method of this name of what is within, which sends some vectors, with its time booked as communication."""

    def method(self: Any, *arguments: Any, **more: Any) -> Timed[Any]:
        self._meter.bytes += vectors * self._nbytes
        work: Awaitable[Any] = getattr(self._inner, name)(*arguments, **more)
        timed: Timed[Any] = self._meter.timed(doing.format(*arguments), work, self._inner)
        return timed

    return method


class MeteredTransport(Transport):
    """A transport that books time and bytes."""

    def __init__(self, transport: Transport, meter: Meter) -> None:
        self._inner, self._meter, self._nbytes = transport, meter, 0
        self.rank, self.world_size = transport.rank, transport.world_size
        self.now = transport.now  # type: ignore[method-assign]

    broadcast = _timed("broadcast", "in a broadcast")
    barrier = _timed("barrier", "in a barrier")
    open_counters = _timed("open_counters", "opening the counters")
    count = _timed("count", "counting")

    @override
    def all_reduce_sum(self, vector: Vector) -> Timed[None]:
        self._book_sum(vector)
        return self._meter.timed(
            "in an all-reduce", self._inner.all_reduce_sum(vector), self._inner
        )

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """Books the time until it is begun, and the time of waiting for its end, as communication."""
        self._book_sum(vector)
        pending = self._meter.begun(
            "in an all-reduce", lambda: self._inner.begin_all_reduce(vector), self._inner
        )
        return _MeteredSum(pending, self._meter, self._inner)

    def _book_sum(self, vector: Vector) -> None:
        """Book the bytes that a worker of a ring sends: the minimum."""
        self._meter.bytes += 2 * (self.world_size - 1) * vector.nbytes // self.world_size

    @override
    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        self._meter.bytes += vector.nbytes * len(neighbours)
        exchange = self._meter.begun(
            "sending to neighbours",
            lambda: self._inner.begin_exchange(vector, neighbours),
            self._inner,
        )
        return self._meter.timed("waiting for the models of neighbours", exchange, self._inner)

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        inner = await self._inner.shared_vector(vector)
        return cast("SharedVector", _MeteredVector(inner, self._meter, vector.nbytes))

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        inner = await self._inner.parameter_server(content, shards=shards)
        return cast("ParameterServer", _MeteredServer(inner, self._meter, 0))


class _MeteredSum(PendingSum):
    def __init__(self, pending: PendingSum, meter: Meter, waiting: _WaitCounter) -> None:
        self._pending, self._meter, self._waiting = pending, meter, waiting
        self.is_done = pending.is_done  # type: ignore[method-assign]

    @override
    def __await__(self) -> Generator[Any, Any, None]:
        return self._meter.timed(
            "finishing an all-reduce", self._pending, self._waiting
        ).__await__()


class _Metered:
    """Books time and bytes; what it does not name is that of what is within. `nbytes`: size of a vector."""

    def __init__(self, inner: Any, meter: Meter, nbytes: int) -> None:
        self._inner, self._meter, self._nbytes = inner, meter, nbytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _pushing(name: str, what: str) -> Any:
    async def method(self: _MeteredServer, *arguments: Any, **more: Any) -> Any:
        server = self._inner
        result = await self._meter.timed(what, getattr(server, name)(*arguments, **more), server)
        sent = server.counts.bytes
        self._meter.bytes += sent - self._booked
        self._booked = sent
        return result

    return method


class _MeteredServer(_Metered):
    """A server; the bytes of a push in the background are booked at the next call."""

    _booked = 0
    pull = _pushing("pull", "reading the server")
    push = _pushing("push", "changing the server")
    try_push = _pushing("try_push", "changing the server")
    drain = _pushing("drain", "finishing a push")
    close = _pushing("close", "closing the server")

    def begin_push(self, *arguments: Any) -> Any:
        return self._meter.begun(
            "pushing to the server", lambda: self._inner.begin_push(*arguments), self._inner
        )


class _MeteredVector(_Metered):
    read = _timed("read", "reading the own model")
    add = _timed("add", "changing the own model")
    read_from_rank = _timed("read_from_rank", "reading the model of rank {}", vectors=1)
    # An average receives the partner's vector and sends its change.
    average_with = _timed("average_with", "averaging with rank {}", vectors=2)
    drain = _timed("drain", "finishing averages")
    close = _timed("close", "closing the shared model")

    async def begin_average_with(self, partner: int) -> Any:
        begun = self._inner.begin_average_with(partner)
        is_begun = await self._meter.timed(f"averaging with rank {partner}", begun, self._inner)
        self._meter.bytes += 2 * self._nbytes * is_begun
        return is_begun
