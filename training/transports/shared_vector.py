"""A worker's shared vector: partners on its host reach it in memory, those on other hosts through sockets.

In memory, whoever averages i and j replaces both vectors by their average while it holds both mutexes (`kernels`): the
sum over all ranks is conserved (up to the rounding of one addition), and nobody sees half of it.

Between hosts, one round trip makes an average of i and j: i sends its vector xi to j; the thread of j computes
d = (xi - xj) / 2, adds d to its vector and returns it; i subtracts d from its own. So

 * the sum over all ranks is conserved in any interleaving, since all changes are additions (up to the rounding of
   two additions);
 * averages that i and j begin with each other at once cross: the later answer is from a vector sent before the earlier
   change, so a part of the difference remains, or all of it with the other sign;
 * nobody waits for a mutex of another host, and the thread serves partners while its rank computes, since its loop is
   compiled and needs no lock of Python;
 * averages with a lost partner are counted and left out.

A vector that is not finite reaches nobody: the average is refused, and its requester counts it.
"""

from __future__ import annotations

from concurrent.futures import Future
from time import perf_counter

import numpy as np
from typing_extensions import override

from training.transports import kernels, mutexes, serving
from training.transports.background import BackgroundThread
from training.transports.basics import Vector
from training.transports.mpi_process import MpiProcess
from training.transports.served_memory import ServedMemory
from training.transports.transport import AverageCounts, SharedVector


class MpiSharedVector(SharedVector):
    """A shared vector whose partners are ranks of MPI.

    Args:
        process: This rank.
        vector: Its content.
        network: See `peers.connect`.
    """

    def __init__(self, process: MpiProcess, vector: Vector, *, network: str | None) -> None:
        self.rank, size = process.comm.rank, process.comm.size
        self.memory = ServedMemory(process, range(size), [vector.size] * size, vector.dtype)
        self._vectors = {rank: rows[0] for rank, rows in self.memory.rows.items()}
        self.values, self._head = self._vectors[self.rank], self.memory.heads[self.rank]
        self._counters = mutexes.counters_of(self._head)
        self.values[:] = vector
        self.memory.open(network=network)
        self._half = vector.dtype.type(0.5).reshape(1)
        self._thread = None if process.is_one_host else BackgroundThread("averages")
        self._own_average: Future[None] | None = None
        self._waits = np.zeros(1)
        self._exchange_seconds = self._background_seconds = self._blocked_seconds = self._other_waits = 0.0
        self._skipped = self._lost = self._received = 0

    @property
    @override
    def counts(self) -> AverageCounts:
        """Counters so far; averages by partners as of the last call."""
        return AverageCounts(
            begun=self._counters.item(mutexes.BEGUN),
            received=self._received,
            skipped=self._skipped,
            wait_seconds=self._waits.item(),
            refused=self._counters.item(mutexes.NUM_REFUSED),
            lost=self._lost,
            exchange_seconds=self._exchange_seconds + self._background_seconds,
            hidden_seconds=max(0.0, self._background_seconds - self._blocked_seconds),
        )

    @override
    async def read(self, out: Vector) -> int:
        return self._counted(kernels.read(out, self.values, self._head, self._waits))

    @override
    async def add(self, change: Vector) -> int:
        return self._counted(kernels.add(change, self.values, self._head, self._waits))

    def _counted(self, version: int) -> int:
        self._received = version - self._counters.item(mutexes.BEGUN)
        self._book_waits(0.0)
        return version

    def _book_waits(self, seconds: float) -> None:
        """Book the time spent waiting for others, and for mutexes."""
        self._other_waits += seconds
        self.waited = self._other_waits + self._waits.item()

    @override
    async def read_of(self, rank: int, out: Vector) -> None:
        """Copy the vector of any rank.

        Raises:
            MPI.Exception: The rank is lost.
        """
        if rank in self._vectors:
            kernels.read(out, self._vectors[rank], self.memory.heads[rank], self._waits)
            self._book_waits(0.0)
            return
        await self.drain()
        self.memory.request(rank, serving.READ)
        np.copyto(out, self.memory.body(out.dtype)[: out.size])

    @override
    async def average_with(self, partner: int) -> None:
        if partner in self._vectors:
            self._average_here(partner)
            return
        await self.drain()
        self._exchange_seconds += self._average_there(partner)

    @override
    async def begin_average_with(self, partner: int) -> bool:
        """Begin an average.

        Between hosts, one is under way at a time: the answers to several requests with the same vector would move it
        several times as far, and with three or more the models of the workers would diverge.
        """
        if partner in self._vectors:
            return self._average_here(partner)
        if self._thread is None or (self._own_average is not None and not self._own_average.done()):
            self._skipped += 1
            return False
        await self.drain()
        self._own_average = self._thread.begin(lambda: self._average_in_background(partner))
        return True

    def _average_here(self, partner: int) -> bool:
        """Average in memory; returns whether both vectors were free."""
        started = perf_counter()
        theirs = (self._vectors[partner], self.memory.heads[partner])
        is_first = self.rank < partner
        state = kernels.average(self.values, self._head, *theirs, self._half, self._waits, is_first)
        self._exchange_seconds += perf_counter() - started
        self._skipped += state == kernels.BUSY
        self._book_waits(0.0)
        return state != kernels.BUSY

    def _average_there(self, partner: int) -> float:
        """Average with a rank of another host; returns the time that it took [s]."""
        started = perf_counter()
        self._lost += not self.memory.average(partner, self.values, self._head)
        return perf_counter() - started

    def _average_in_background(self, partner: int) -> None:
        self._background_seconds += self._average_there(partner)

    @override
    async def drain(self) -> None:
        started = perf_counter()
        if self._own_average is not None:
            own_average, self._own_average = self._own_average, None
            own_average.result()
            self._blocked_seconds += perf_counter() - started
            self._book_waits(perf_counter() - started)
        self._received = self._counters.item(mutexes.RECEIVED)

    @override
    async def close(self) -> None:
        """Close the vector; ranks that come early serve the others until all are here."""
        await self.drain()
        if self._thread is not None:
            self._thread.close()
        started, process = perf_counter(), self.memory.process
        process.wait_for_all()
        self._book_waits(perf_counter() - started)
        self._received = self._counters.item(mutexes.RECEIVED)
        # Access to freed memory would crash the process.
        self.values, self._counters, self._vectors = self.values.copy(), self._counters.copy(), {}
        with process.turn:
            self.memory.free()


class MpiCounters(ServedMemory):
    """Numbers on rank 0 to which all ranks add at any time, without the help of rank 0.

    Args:
        process: This rank.
        number: Number of counters.
        network: See `peers.connect`.
    """

    def __init__(self, process: MpiProcess, number: int, *, network: str | None) -> None:
        super().__init__(process, [0], [number], np.int64)
        self.open(network=network)

    def add(self, place: int, number: int) -> int:
        """Add to a counter; returns its sum so far.

        Raises:
            MPI.Exception: Rank 0 is lost.
        """
        if 0 in self.rows:
            return kernels.fetch_and_add(place, number, self.rows[0][0], self.heads[0]) + number
        before: int = self.request(0, serving.FETCH_AND_ADD, place=place, number=number).item(serving.NUMBER)
        return before + number
