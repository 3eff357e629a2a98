"""Measures a worker's time by kind of work, and the bytes that it sends, around any transport."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from typing_extensions import override

from training.transports.transport import AverageCounts, SharedVector, Transport, Vector

#: Number of all-reduces per timed barrier; the barrier's time is the time spent waiting for others.
_SAMPLED: Final = 16


class Meter:
    """Seconds by kind of work, and bytes.

    Args:
        now: The clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = self._sign = now()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes = 0
        self.doing = "starting"
        """Current activity of the worker, for the report of a stall."""
        self._waits: list[float] = []
        self._collectives = self._first_collective = 0
        self._last_wait = 0.0

    def restart(self) -> None:
        """Reset all counters and start now."""
        self.seconds.clear()
        self.bytes = 0
        self._waits.clear()
        self._first_collective = self._collectives
        self._last = self._now()

    def lap(self, kind: str) -> None:
        """Book the time since the last lap under this kind."""
        now = self._now()
        self.seconds[kind] += now - self._last
        self._last = now

    def alive(self) -> None:
        """Report progress within long work."""
        self._sign = self._now()

    @property
    def seconds_without_sign(self) -> float:
        """Time since the last booking of this worker."""
        return self._now() - max(self._last, self._sign)

    async def timed(self, what: str, work: Awaitable[None]) -> None:
        """Await some communication, and book the time before it as computation."""
        self.lap("compute")
        before, self.doing = self.doing, what
        await work
        self.doing = before
        self.lap("communicate")

    def is_sampled(self) -> bool:
        """Count a collective operation; True if its waiting time is to be measured."""
        self._collectives += 1
        return self._collectives % _SAMPLED == 0

    async def wait(self, barrier: Awaitable[None]) -> None:
        """Measure the time until all others reach a barrier."""
        self.lap("compute")
        started = self._now()
        before, self.doing = self.doing, "waiting for the others"
        await barrier
        self.doing = before
        self._last_wait = self._now() - started
        self._waits.append(self._last_wait)
        self.lap("communicate")

    def wait_seconds(self, counts_wait: float) -> float:
        """Estimated part of the communication time spent waiting for others.

        Args:
            counts_wait: Measured time spent waiting for locks.
        """
        mean = sum(self._waits) / len(self._waits) if self._waits else self._last_wait
        sampled = mean * (self._collectives - self._first_collective)
        return min(sampled, self.seconds["communicate"]) + counts_wait


class MeteredTransport(Transport):
    """A transport that books time and bytes."""

    def __init__(self, transport: Transport, meter: Meter) -> None:
        self._transport = transport
        self._meter = meter
        self.rank = transport.rank
        self.world_size = transport.world_size

    @override
    async def all_reduce_sum(self, vector: Vector) -> None:
        """Books the bytes that a worker of a ring sends: the minimum."""
        if self._meter.is_sampled():
            await self._meter.wait(self._transport.barrier())
        self._meter.bytes += 2 * (self.world_size - 1) * vector.nbytes // self.world_size
        await self._meter.timed("in an all-reduce", self._transport.all_reduce_sum(vector))

    @override
    async def broadcast(self, vector: Vector) -> None:
        await self._meter.timed("in a broadcast", self._transport.broadcast(vector))

    @override
    async def barrier(self) -> None:
        await self._meter.timed("in a barrier", self._transport.barrier())

    @override
    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        self._meter.bytes += vector.nbytes * len(neighbours)
        return self._received(self._transport.begin_exchange(vector, neighbours))

    async def _received(self, exchange: Awaitable[list[Vector]]) -> list[Vector]:
        theirs: list[Vector] = []

        async def receive() -> None:
            theirs.extend(await exchange)

        await self._meter.timed("waiting for the models of neighbours", receive())
        return theirs

    @override
    async def share(self, vector: Vector) -> SharedVector:
        return _MeteredVector(await self._transport.share(vector), self._meter, vector.nbytes)

    @override
    async def count_samples(self, num_samples: int) -> int:
        return await self._transport.count_samples(num_samples)

    @override
    def now(self) -> float:
        return self._transport.now()


class _MeteredVector(SharedVector):
    """A shared vector that books time and bytes."""

    def __init__(self, shared: SharedVector, meter: Meter, nbytes: int) -> None:
        self._shared = shared
        self._meter = meter
        self._nbytes = nbytes

    @property
    def counts(self) -> AverageCounts:
        return self._shared.counts

    async def read(self, out: Vector) -> int:
        self._meter.lap("compute")
        averages = await self._shared.read(out)
        self._meter.lap("communicate")
        return averages

    async def add(self, change: Vector) -> int:
        self._meter.lap("compute")
        averages = await self._shared.add(change)
        self._meter.lap("communicate")
        return averages

    async def average_with(self, partner: int) -> None:
        # An average receives the partner's vector and sends its change.
        self._meter.bytes += 2 * self._nbytes
        await self._meter.timed(f"averaging with rank {partner}", self._shared.average_with(partner))

    def begin_average_with(self, partner: int) -> None:
        before = self._shared.counts.skipped
        self._shared.begin_average_with(partner)
        if self._shared.counts.skipped == before:
            self._meter.bytes += 2 * self._nbytes

    async def drain(self) -> None:
        await self._meter.timed("finishing averages", self._shared.drain())

    async def close(self) -> None:
        await self._shared.close()
