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

from dataclasses import replace
from time import perf_counter

import numpy as np
from typing_extensions import override

from training.transports import kernels, serving
from training.transports.basics import BackgroundThread, ExchangeCounts, MpiProcess, Vector
from training.transports.memory import Memory
from training.transports.transport import SharedVector


class MpiSharedVector(SharedVector):
    """A shared vector whose partners are ranks of MPI.

    `network`: see `peers.connect`.
    """

    def __init__(self, process: MpiProcess, vector: Vector, *, network: str | None) -> None:
        self.rank, size = process.comm.rank, process.comm.size
        self.memory = Memory(process, [*range(size)], [vector.size] * size, vector.dtype)
        self._vectors = {rank: rows[0] for rank, rows in self.memory.rows.items()}
        self.values, self._head = self._vectors[self.rank], self.memory.heads[self.rank]
        self._counters = kernels.counters_of(self._head)
        self.values[:] = vector
        self.memory.open(network=network)
        self._half = vector.dtype.type(0.5).reshape(1)
        self._background = None if process.is_one_host else BackgroundThread("averages")
        #: Seconds of waiting for mutexes, and in other calls.
        self._lock_waits, self._other_waits = np.zeros(1), 0.0
        self._counts = ExchangeCounts()

    @property
    @override
    def waited(self) -> float:  # type: ignore[override]
        return self._other_waits + self._lock_waits.item()

    @property
    @override
    def counts(self) -> ExchangeCounts:
        """Counters so far; averages by partners as of the last call: the first may come before this rank counts."""
        own, beside = self._counts, self._background
        return replace(
            own,
            begun=self._counters.item(kernels.BEGUN),
            refused=self._counters.item(kernels.NUM_REFUSED),
            wait_seconds=self._lock_waits.item(),
            exchange_seconds=own.exchange_seconds + (beside.seconds if beside else 0.0),
            hidden_seconds=beside.hidden_seconds if beside else 0.0,
        )

    @override
    async def read(self, out: Vector) -> int:
        return self._counted(kernels.read(out, self.values, self._head, self._lock_waits))

    @override
    async def add(self, change: Vector) -> int:
        return self._counted(kernels.add(change, self.values, self._head, self._lock_waits))

    def _counted(self, version: int) -> int:
        self._counts.received = version - self._counters.item(kernels.BEGUN)
        return version

    @override
    async def read_from_rank(self, rank: int, out: Vector) -> None:
        """Copy the vector of any rank."""
        if rank in self._vectors:
            kernels.read(out, self._vectors[rank], self.memory.heads[rank], self._lock_waits)
        else:
            await self.drain()
            self.memory.request(rank, serving.READ)
            np.copyto(out, self.memory.body(out.dtype)[: out.size])

    @override
    async def average_with(self, partner: int) -> None:
        if partner in self._vectors:
            self._average_here(partner)
            return
        await self.drain()
        started = perf_counter()
        await self._average_there(partner)
        self._counts.exchange_seconds += perf_counter() - started

    @override
    async def begin_average_with(self, partner: int) -> bool:
        """Begin an average.

        Between hosts, one is under way at a time: the answers to several requests with the same vector would move it
        several times as far, and with three or more the models of the workers would diverge.
        """
        if partner in self._vectors:
            return self._average_here(partner)
        if self._background is None or self._background.is_under_way:
            self._counts.skipped += 1
            return False
        await self.drain()
        self._background.begin(self._average_there(partner))
        return True

    def _average_here(self, partner: int) -> bool:
        """Average in memory; returns whether both vectors were free."""
        started = perf_counter()
        theirs = (self._vectors[partner], self.memory.heads[partner])
        is_first = self.rank < partner
        state = kernels.average(
            self.values, self._head, *theirs, self._half, self._lock_waits, is_first
        )
        self._counts.exchange_seconds += perf_counter() - started
        self._counts.skipped += state == kernels.BUSY
        return state != kernels.BUSY

    async def _average_there(self, partner: int) -> None:
        self._counts.lost += not self.memory.average(partner, self.values, self._head)

    @override
    async def drain(self) -> None:
        if self._background is not None:
            self._other_waits += await self._background.drain()
        self._counts.received = self._counters.item(kernels.RECEIVED)

    @override
    async def close(self) -> None:
        """Close the vector; ranks that come early serve the others until all are here."""
        await self.drain()
        if self._background is not None:
            self._background.close()
        self._other_waits += self.memory.process.wait_for_all()
        self._counts.received = self._counters.item(kernels.RECEIVED)
        # Access to freed memory would crash the process.
        self.values, self._counters, self._vectors = self.values.copy(), self._counters.copy(), {}
        with self.memory.process.turn:
            self.memory.free()
