"""A worker's shared vector: partners reach it in memory, or from other hosts through sockets.

In memory, whoever averages i and j replaces both vectors by their average while it holds both
mutexes (`kernels`): the sum over all ranks is conserved (up to the rounding of one addition), and
nobody sees half of it.

Between hosts, one round trip makes an average of i and j: i sends its vector xi to j; the thread of
j computes d = (xi - xj) / 2, adds d to its vector and returns it; i subtracts d from its own. So

 * the sum over all ranks is conserved in any interleaving, since all changes are additions (up to
   the rounding of two additions);
 * averages that i and j begin with each other at once cross: the later answer is from a vector sent
   before the earlier change, so a part of the difference remains, or all of it with the other sign;
 * nobody waits for a mutex of another host, and the thread serves partners while its rank computes,
   since its loop is compiled and needs no lock of Python;
 * averages with a lost partner are counted and left out.

A vector that is not finite reaches nobody: the average is refused, and its requester counts it.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np
from typing_extensions import override

from training.transports import kernels, messages
from training.transports.basics import BackgroundThread, ExchangeCounts, MpiProcess, Vector
from training.transports.memory import Memory
from training.transports.transport import SharedVector


class MpiSharedVector(SharedVector):
    """A shared vector whose partners are ranks of MPI.

    `network`: see `peers.connect`.
    """

    def __init__(self, process: MpiProcess, vector: Vector, *, network: str | None) -> None:
        self.rank = process.comm.rank
        world_size = process.comm.size
        owners = range(world_size)
        # One record a rank, with one row: its vector.
        self.memory = Memory(process, owners, [vector.size] * world_size, vector.dtype)
        #: The vectors of the ranks of this host.
        self._vectors = {rank: rows[0] for rank, rows in self.memory.rows.items()}
        self.values = self._vectors[self.rank]
        self._head = self.memory.heads[self.rank]
        self._counters = kernels.counters_of(self._head)
        self.values[:] = vector
        self.memory.open(network=network)
        self._half = vector.dtype.type(0.5).reshape(1)
        #: The thread of averages between hosts.
        self._background = None if process.is_one_host else BackgroundThread("averages")
        #: (1,) time spent waiting for mutexes, to which the kernels add [s].
        self._mutex_wait_seconds = np.zeros(1)
        #: Time spent waiting in other calls [s].
        self._other_wait_seconds = 0.0
        self._counts = ExchangeCounts()

    @property
    @override
    def waited(self) -> float:
        return self._other_wait_seconds + self._mutex_wait_seconds.item()

    @property
    @override
    def counts(self) -> ExchangeCounts:
        """Counters of this rank's averages so far.

        The number of averages by partners is that of the last call of `read`, `add` or `drain`.
        """
        counts = replace(
            self._counts,
            begun=self._counters.item(kernels.BEGUN),
            refused=self._counters.item(kernels.NUM_REFUSED),
            wait_seconds=self._mutex_wait_seconds.item(),
        )
        if self._background is not None:
            counts.exchange_seconds += self._background.seconds
            counts.hidden_seconds = self._background.hidden_seconds
        return counts

    @override
    async def read(self, out: Vector) -> int:
        num_averages = kernels.read(out, self.values, self._head, self._mutex_wait_seconds)
        self._count_received(num_averages)
        return num_averages

    @override
    async def add(self, change: Vector) -> int:
        num_averages = kernels.add(change, self.values, self._head, self._mutex_wait_seconds)
        self._count_received(num_averages)
        return num_averages

    def _count_received(self, num_averages: int) -> None:
        """Note how many averages partners made: all averages but those that this rank began."""
        self._counts.received = num_averages - self._counters.item(kernels.BEGUN)

    @override
    async def read_from_rank(self, rank: int, out: Vector) -> None:
        """Copy the vector of a rank into `out`: from memory, or by a request to its host."""
        if rank in self._vectors:
            vector, head = self._vectors[rank], self.memory.heads[rank]
            kernels.read(out, vector, head, self._mutex_wait_seconds)
        else:
            # The average in the background uses the same connection and message.
            await self.drain()
            self.memory.request(rank, messages.READ)
            np.copyto(out, self.memory.body(out.dtype)[: out.size])

    @override
    async def average_with(self, partner: int) -> None:
        """Average with the rank `partner`, in memory or by a request, and wait for the end."""
        if partner in self._vectors:
            self._average_in_memory(partner)
            return
        await self.drain()
        started = perf_counter()
        await self._average_between_hosts(partner)
        self._counts.exchange_seconds += perf_counter() - started

    @override
    async def begin_average_with(self, partner: int) -> bool:
        """Average with a rank of this host at once, or begin an average with another host.

        Between hosts, one is under way at a time, and a second one is skipped. The answers to
        several requests with the same vector would move it several times as far, and with three or
        more the models of the workers would diverge.
        """
        if partner in self._vectors:
            return self._average_in_memory(partner)
        if self._background is None or self._background.is_under_way:
            self._counts.skipped += 1
            return False
        await self.drain()
        self._background.begin(self._average_between_hosts(partner))
        return True

    def _average_in_memory(self, partner: int) -> bool:
        """Average with a rank of this host; return False if one of both vectors was not free."""
        started = perf_counter()
        state = kernels.average(
            self.values,
            self._head,
            self._vectors[partner],
            self.memory.heads[partner],
            self._half,
            self._mutex_wait_seconds,
            self.rank < partner,
        )
        self._counts.exchange_seconds += perf_counter() - started
        if state == kernels.BUSY:
            self._counts.skipped += 1
            return False
        return True

    async def _average_between_hosts(self, partner: int) -> None:
        """Average with a rank of another host; count it as lost if the rank is."""
        if not self.memory.average(partner, self.values, self._head):
            self._counts.lost += 1

    @override
    async def drain(self) -> None:
        if self._background is not None:
            self._other_wait_seconds += await self._background.drain()
        self._counts.received = self._counters.item(kernels.RECEIVED)

    @override
    async def close(self) -> None:
        """Free the shared memory; ranks that come early serve the others until all are here.

        The content stays readable in `values`, as a copy.
        """
        await self.drain()
        if self._background is not None:
            self._background.close()
        self._other_wait_seconds += self.memory.process.wait_for_all()
        self._counts.received = self._counters.item(kernels.RECEIVED)
        # Access to freed memory would crash the process.
        self.values = self.values.copy()
        self._counters = self._counters.copy()
        self._vectors = {}
        with self.memory.process.mpi_lock:
            self.memory.free()
