"""A shared vector on the virtual clock, and the averages of pairs."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Generator
from typing import Protocol

import numpy as np
from typing_extensions import override

from training.simulation.meetings import half_difference
from training.simulation.virtual_time import VirtualClock, VirtualLock, VirtualTask, suspend
from training.transports.transport import AverageCounts, SharedVector, Vector, is_finite


class AveragingNetwork(Protocol):
    """What a shared vector needs of the network."""

    clock: VirtualClock
    additive: bool
    vectors: dict[int, list[SimVector]]

    def travel(self, sender: int, receiver: int, nbytes: int) -> tuple[float, bool]:
        """Send the half of an average that carries a vector from one worker to another.

        Returns:
            The time until it arrives, or until the sender knows that it is lost [s]; whether it arrives.
        """

    def answer(self, sender: int, receiver: int, nbytes: int) -> Awaitable[None]:
        """Wait for the answer to a request: an empty message there, and some bytes back."""


class SimVector(SharedVector):
    """A simulated worker's shared vector.

    An average is locked (as under MPI: take both locks in the order of the ranks, read, change both sides, unlock) or
    additive (read both sides, and add the differences after their time on the network, without locks).

    Args:
        network: The network of all workers.
        rank: Rank of the owner.
        vector: Initial content.
        which: Number of the vector among those of this rank.
    """

    def __init__(self, network: AveragingNetwork, rank: int, vector: Vector, *, which: int) -> None:
        self._network = network
        self._rank = rank
        self._which = which
        self.values = vector.copy()
        self.lock = VirtualLock(network.clock)
        self._begun = self._received = self._skipped = self._mixed = self._refused = self._lost = 0
        self._wait = self._busy = 0.0
        self.changes = 0
        """Number of changes of any kind so far."""
        self._under_way = False
        self._draining: VirtualTask | None = None

    @property
    @override
    def counts(self) -> AverageCounts:
        return AverageCounts(
            begun=self._begun,
            received=self._received,
            skipped=self._skipped,
            mixed_reads=self._mixed,
            wait_seconds=self._wait,
            exchange_seconds=self._busy,
            refused=self._refused,
            lost=self._lost,
        )

    @override
    async def read(self, out: Vector) -> int:
        if not self._network.additive:
            await self._locked()
            self.lock.release()
        np.copyto(out, self.values)
        return self._begun + self._received

    @override
    async def add(self, change: Vector) -> int:
        if not self._network.additive:
            await self._locked()
        self.values += change
        self.changes += 1
        if not self._network.additive:
            self.lock.release()
        return self._begun + self._received

    async def _locked(self, vector: SimVector | None = None) -> None:
        started = self._network.clock.now
        await (vector or self).lock.acquire()
        waited = self._network.clock.now - started
        self._wait += waited
        self.waited += waited

    @override
    async def read_of(self, rank: int, out: Vector) -> None:
        network = self._network
        theirs = network.vectors[rank][self._which]
        if not network.additive:
            await self._locked(theirs)
        if rank != self._rank:
            await network.answer(rank, self._rank, out.nbytes)
        np.copyto(out, theirs.values)
        if not network.additive:
            theirs.lock.release()

    @override
    async def average_with(self, partner: int) -> None:
        waited = self._wait
        await self._average(partner)
        self.waited += self._wait - waited

    async def _average(self, partner: int) -> None:
        network = self._network
        clock = network.clock
        started = clock.now
        theirs = network.vectors[partner][self._which]
        first, second = (self, theirs) if self._rank < theirs._rank else (theirs, self)
        if not network.additive:
            await first.lock.acquire()
            await second.lock.acquire()
            self._wait += clock.now - started
        is_made = None
        if await self._travel(theirs, self):
            difference = half_difference(theirs.values, self.values)
            before = self.changes + theirs.changes
            if await self._travel(self, theirs):
                self._mixed += self.changes + theirs.changes != before
                is_made = self._apply(theirs, difference)
        if not network.additive:
            second.lock.release()
            first.lock.release()
        if is_made is None:
            self._lost += 1
            theirs._lost += 1
        elif is_made:
            self._begun += 1
            theirs._received += 1
        else:
            self._refused += 1
        self._busy += clock.now - started

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
        self.changes += 1
        theirs.changes += 1
        return True

    @override
    def begin_average_with(self, partner: int) -> bool:
        if self._under_way:
            self._skipped += 1
            return False
        self._under_way = True
        self._network.clock.spawn(self._average_beside(partner), f"average of rank {self._rank}", keep=False)
        return True

    async def _average_beside(self, partner: int) -> None:
        await self._average(partner)
        self._under_way = False
        if self._draining is not None:
            self._network.clock.at(self._network.clock.now, self._draining.resume)
            self._draining = None

    @override
    async def drain(self) -> None:
        if self._under_way:

            def wait(task: VirtualTask) -> None:
                self._draining = task

            started = self._network.clock.now
            await suspend(wait)
            self.waited += self._network.clock.now - started

    @override
    async def close(self) -> None: ...
