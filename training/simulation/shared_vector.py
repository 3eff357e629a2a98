"""A shared vector on the virtual clock, and the averages of pairs."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Awaitable, Generator
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from training.simulation.virtual_time import VirtualBackground, VirtualClock, VirtualLock
from training.transports.basics import Vector, is_finite
from training.transports.transport import AverageCounts, SharedVector


class AveragingNetwork(Protocol):
    """What a shared vector needs of `training.simulation.transport.SimNetwork`."""

    clock: VirtualClock
    has_locks: bool
    vectors: dict[int, list[SimVector]]

    def travel(self, sender: int, receiver: int, nbytes: int) -> tuple[float, bool]: ...  # noqa: D102

    def answer(self, sender: int, receiver: int, nbytes: int) -> Awaitable[None]: ...  # noqa: D102


class SimVector(SharedVector):
    """A simulated worker's shared vector.

    An average in memory takes both locks in the order of the ranks, reads, changes both sides and unlocks. One through
    sockets reads both sides, and adds the differences after their time on the network, without locks.
    """

    def __init__(self, network: AveragingNetwork, rank: int, vector: Vector, *, which: int) -> None:
        super().__init__(vector)
        self._network = network
        self._rank = rank
        self._which = which
        self.lock = VirtualLock(network.clock)
        #: Fields of `AverageCounts`.
        self._counted: defaultdict[str, Any] = defaultdict(int)
        self._background = VirtualBackground(network.clock, f"average of rank {rank}")

    @property
    @override
    def counts(self) -> AverageCounts:
        hidden = max(0.0, self._background.seconds - self._background.blocked_seconds)
        return AverageCounts(**self._counted, hidden_seconds=hidden)

    @override
    async def read(self, out: Vector) -> int:
        if self._network.has_locks:
            await self._locked()
            self.lock.release()
        np.copyto(out, self.values)
        return self._num_averages

    @override
    async def add(self, change: Vector) -> int:
        if self._network.has_locks:
            await self._locked()
        self.values += change
        if self._network.has_locks:
            self.lock.release()
        return self._num_averages

    @property
    def _num_averages(self) -> int:
        return int(self._counted["begun"] + self._counted["received"])

    async def _locked(self, vector: SimVector | None = None) -> None:
        started, is_in_background = self._network.clock.now, self._background.is_under_way
        await (vector or self).lock.acquire()
        waited = self._network.clock.now - started
        self._counted["wait_seconds"] += waited
        self.waited += waited
        self._background.blocked_seconds += waited if is_in_background else 0.0

    @override
    async def read_of(self, rank: int, out: Vector) -> None:
        network = self._network
        theirs = network.vectors[rank][self._which]
        if network.has_locks:
            await self._locked(theirs)
        if rank != self._rank:
            await network.answer(rank, self._rank, out.nbytes)
        np.copyto(out, theirs.values)
        if network.has_locks:
            theirs.lock.release()

    @override
    async def average_with(self, partner: int) -> None:
        waited = self._counted["wait_seconds"]
        await self._average(partner)
        self.waited += self._counted["wait_seconds"] - waited

    async def _average(self, partner: int) -> None:
        network = self._network
        clock = network.clock
        started = clock.now
        theirs = network.vectors[partner][self._which]
        first, second = (self, theirs) if self._rank < theirs._rank else (theirs, self)
        if network.has_locks:
            await first.lock.acquire()
            await second.lock.acquire()
            self._counted["wait_seconds"] += clock.now - started
        is_made = None
        if await self._travel(theirs, self):
            difference = theirs.values - self.values
            # Rounded down for integers, which keeps the sum.
            difference = difference // 2 if difference.dtype.kind in "iu" else difference * 0.5
            if await self._travel(self, theirs):
                is_made = self._apply(theirs, difference)
        if network.has_locks:
            second.lock.release()
            first.lock.release()
        if is_made is None:
            self._counted["lost"] += 1
            theirs._counted["lost"] += 1
        elif is_made:
            self._counted["begun"] += 1
            theirs._counted["received"] += 1
        else:
            self._counted["refused"] += 1
        self._counted["exchange_seconds"] += clock.now - started

    @types.coroutine
    def _travel(self, sender: SimVector, receiver: SimVector) -> Generator[float, None, bool]:
        """Wait for the half of an average that carries a vector; False if it is lost."""
        seconds, arrives = self._network.travel(sender._rank, receiver._rank, self.values.nbytes)
        yield self._network.clock.now + seconds
        return arrives

    def _apply(self, theirs: SimVector, difference: Vector) -> bool:
        """Change both vectors, unless one of them is not finite, which must not reach the other."""
        if difference.dtype.kind == "f" and not is_finite(difference):
            return False
        self.values += difference
        theirs.values -= difference
        return True

    @override
    async def begin_average_with(self, partner: int) -> bool:
        if self._network.has_locks:
            await self.average_with(partner)
            return True
        if self._background.is_under_way:
            self._counted["skipped"] += 1
            return False
        self._background.begin(self._average(partner))
        return True

    @override
    async def drain(self) -> None:
        self.waited += await self._background.drain()
