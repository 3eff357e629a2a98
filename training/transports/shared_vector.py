"""A worker's shared vector: partners on its host reach it in memory, those on other hosts through sockets.

In memory, whoever averages i and j replaces both vectors by their average while it holds both mutexes (`kernels`): the
sum over all ranks is conserved (for floats up to the rounding of one addition), and nobody sees half of it.

Between hosts, one round trip makes an average of i and j: i sends its vector xi to j; the thread of j computes
d = (xi - xj) / 2, adds d to its vector and returns it; i subtracts d from its own. So

 * the sum over all ranks is conserved in any interleaving, since all changes are additions (integers: d is rounded
   down, exact; floats: up to the rounding of two additions);
 * averages that i and j begin with each other at once cross: the later answer is from a vector sent before the earlier
   change, so a part of the difference remains, or all of it with the other sign;
 * nobody waits for a mutex of another host, and the thread serves partners while its rank computes, since its loop is
   compiled and needs no lock of Python;
 * averages with a lost partner are counted and left out.

A vector that is not finite reaches nobody: the average is refused, and its requester counts it.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import numpy as np
from typing_extensions import override

from training.transports import kernels
from training.transports.basics import Vector
from training.transports.host_memory import ALIGNMENT, HostMemory, aligned, refuse_different
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.peers import Peers, connect
from training.transports.transport import AverageCounts, SharedVector

#: Lane of the connections for averages in the background; the last lane is for requests that the owner waits for.
_BACKGROUND: Final = 0
#: A waiting owner checks for signals after this time [ms].
_PATIENCE: Final = 100
_NOBODY: Final = Peers([{}, {}], [])


class ServedVector:
    """A vector of this rank that others reach; all ranks together make one.

    Args:
        process: This rank.
        vector: Its content.
        network: See `peers.connect`.
        servers: The ranks whose vectors others ask for.
    """

    def __init__(self, process: MpiProcess, vector: Vector, *, network: str | None, servers: Sequence[int]) -> None:
        refuse_different(process.comm, vector)
        self.rank = process.comm.rank
        self._memory = HostMemory(process.host, kernels.HEAD_BYTES + vector.nbytes)
        regions = [self._memory.region(number) for number in range(process.host.size)]
        #: Mutex with counters, and content, of each rank of this host.
        self._heads = {rank: each[: kernels.HEAD_BYTES] for rank, each in zip(process.on_host, regions, strict=True)}
        self._vectors: dict[int, Vector] = {
            rank: each[kernels.HEAD_BYTES :][: vector.nbytes].view(vector.dtype)
            for rank, each in zip(process.on_host, regions, strict=True)
        }
        self._own, self._head = self._vectors[self.rank], self._heads[self.rank]
        self._counters = kernels.counters_of(self._head)
        self._half = np.array([0.5 if vector.dtype.kind == "f" else 0], vector.dtype)
        self._waits, self._seconds = np.zeros(1), np.zeros(1)
        kernels.init_head(self._head)
        self._own[:] = vector
        process.host.Barrier()
        self._error: BaseException | None = None
        self._peers = _NOBODY if process.is_one_host else connect(process, servers=servers, lanes=2, network=network)
        self._waited = {rank: each.fileno() for rank, each in self._peers.asking[-1].items()}
        self._slots: dict[int, int] = {}
        if not process.is_one_host:
            self._serve_others()

    def _serve_others(self) -> None:
        """Start the thread that serves ranks of other hosts."""
        self._pairs = (*socket.socketpair(), *socket.socketpair())
        self._wakes, woken, self._is_drained, self._drains = self._pairs
        own = self._peers.asking[_BACKGROUND]
        connections = [woken, *self._peers.serving, *own.values()]
        self._first_own = 1 + len(self._peers.serving)
        self._slots |= {rank: self._first_own + number for number, rank in enumerate(own)}
        # The row behind those of the connections is for the requests that the owner waits for.
        rows, message_bytes = len(connections) + 1, aligned(kernels.HEADER_BYTES + self._own.nbytes)
        self._messages = np.zeros((rows, message_bytes), np.uint8)
        self._progress = np.zeros((rows, kernels.NUM_PROGRESS), np.int64)
        self._started = np.zeros(rows)
        self._polled = np.array([kernels.poll_entry(each.fileno()) for each in connections], np.int16)
        self._ask_polled = np.zeros(kernels.POLL_WORDS, np.int16)
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, name="averages", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """End the thread, close the connections and free the memory, all ranks together."""
        if self._peers is not _NOBODY:
            self._counters[kernels.IS_ENDING] = 1
            self._wakes.send(b"-")
            self._thread.join()
            self._peers.close()
            for each in self._pairs:
                each.close()
        # Access to freed memory would crash the process.
        self._own, self._head, self._counters = self._own.copy(), self._head.copy(), self._counters.copy()
        self._vectors = self._heads = {}
        self._memory.free()

    def _ask_without_vector(self, rank: int, kind: int, place: int, number: int) -> None:
        kernels.prepare(kind, place, number, self._messages[-1], self._progress[-1])
        if self._ask(rank) != kernels.DONE:
            mpi = load_mpi()
            raise mpi.Exception(mpi.ERR_PROC_FAILED)

    def _ask(self, rank: int) -> int:
        """Send the prepared request and wait for its answer: DONE or LOST."""
        descriptor = self._waited.get(rank)
        if descriptor is None:
            return kernels.LOST
        message, progress, state = self._messages[-1], self._progress[-1], kernels.WAITING
        while state == kernels.WAITING:
            # Between two calls, Python handles signals.
            self._raise_error_of_thread()
            state = kernels.ask(descriptor, self._ask_polled, message, progress, _PATIENCE)
        if state == kernels.LOST:
            del self._waited[rank]
        return state

    def _serve(self) -> None:
        own, times = (self._own, self._half, self._head), (self._seconds, self._drains.fileno())
        try:
            kernels.serve(self._first_own, self._polled, self._messages, self._progress, self._started, *own, *times)
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._error = error

    def _raise_error_of_thread(self) -> None:
        if self._error is not None:
            raise self._error


class MpiSharedVector(ServedVector, SharedVector):
    """A shared vector whose partners are ranks of MPI.

    Args:
        process: This rank.
        vector: Its content.
        network: See `peers.connect`.
    """

    def __init__(self, process: MpiProcess, vector: Vector, *, network: str | None) -> None:
        super().__init__(process, vector, network=network, servers=range(process.comm.size))
        self._process = process
        self._exchange_seconds = self._blocked_seconds = self._other_waits = 0.0
        self._skipped = self._received = 0

    @property
    @override
    def counts(self) -> AverageCounts:
        """Counters so far; averages by partners as of the last call."""
        counters = self._counters
        beside = self._seconds.item()
        return AverageCounts(
            begun=counters.item(kernels.BEGUN),
            received=self._received,
            skipped=self._skipped,
            wait_seconds=self._waits.item(),
            refused=counters.item(kernels.NUM_REFUSED),
            lost=counters.item(kernels.NUM_LOST),
            exchange_seconds=beside + self._exchange_seconds,
            hidden_seconds=max(0.0, beside - self._blocked_seconds),
        )

    @override
    async def read(self, out: Vector) -> int:
        return self._counted(kernels.read(out, self._own, self._head, self._waits))

    @override
    async def add(self, change: Vector) -> int:
        return self._counted(kernels.add(change, self._own, self._head, self._waits))

    def _counted(self, version: int) -> int:
        self._received = version - self._counters.item(kernels.BEGUN)
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
            kernels.read(out, self._vectors[rank], self._heads[rank], self._waits)
            self._book_waits(0.0)
            return
        self._ask_without_vector(rank, kernels.READ, 0, 0)
        np.copyto(out, self._messages[-1, kernels.HEADER_BYTES :].view(out.dtype)[: out.size])

    @override
    async def average_with(self, partner: int) -> None:
        self._process.refuse_non_partner(partner)
        if partner in self._vectors:
            self._average_here(partner)
            return
        started = perf_counter()
        kernels.prepare_average(self._messages[-1], self._progress[-1], self._own, self._head)
        if self._ask(partner) == kernels.DONE:
            kernels.take_answer(self._messages[-1], self._own, self._head)
        else:
            self._counters[kernels.NUM_LOST] += 1
        self._exchange_seconds += perf_counter() - started

    @override
    async def begin_average_with(self, partner: int) -> bool:
        self._process.refuse_non_partner(partner)
        if partner in self._vectors:
            return self._average_here(partner)
        started = perf_counter()
        connections = (self._polled, self._messages, self._progress, self._started)
        state = kernels.begin(self._slots[partner], *connections, self._own, self._head)
        if state == kernels.WAITING:
            self._wakes.send(b"-")
        self._skipped += state == kernels.BUSY
        self._blocked_seconds += perf_counter() - started
        return bool(state != kernels.BUSY)

    def _average_here(self, partner: int) -> bool:
        """Average in memory; returns whether both vectors were free."""
        started = perf_counter()
        theirs = (self._vectors[partner], self._heads[partner])
        is_first = self.rank < partner
        state = kernels.average(self._own, self._head, *theirs, self._half, self._waits, is_first)
        self._exchange_seconds += perf_counter() - started
        self._skipped += state == kernels.BUSY
        self._book_waits(0.0)
        return state != kernels.BUSY

    @override
    async def drain(self) -> None:
        started = perf_counter()
        self._counters[kernels.IS_DRAINING] = 1
        while self._counters[kernels.NUM_UNDER_WAY]:
            self._raise_error_of_thread()
            if select.select([self._is_drained], [], [], 1e-3 * _PATIENCE)[0]:
                self._is_drained.recv(ALIGNMENT)
        self._counters[kernels.IS_DRAINING] = 0
        self._received = self._counters.item(kernels.RECEIVED)
        self._blocked_seconds += perf_counter() - started
        self._book_waits(perf_counter() - started)

    @override
    async def close(self) -> None:
        """Close the vector; ranks that come early serve the others until all are here."""
        await self.drain()
        started = perf_counter()
        self._process.wait_for_all()
        self._book_waits(perf_counter() - started)
        with self._process.turn:
            self.free()
        self._received = self._counters.item(kernels.RECEIVED)


class MpiCounters(ServedVector):
    """Numbers on rank 0 to which all ranks add at any time, without the help of rank 0.

    Args:
        process: This rank.
        number: Number of counters.
        network: See `peers.connect`.
    """

    def __init__(self, process: MpiProcess, number: int, *, network: str | None) -> None:
        super().__init__(process, np.zeros(number, np.int64), network=network, servers=[0])

    def add(self, place: int, number: int) -> int:
        """Add to a counter; returns its sum so far.

        Raises:
            MPI.Exception: Rank 0 is lost.
        """
        if 0 in self._vectors:
            return kernels.fetch_and_add(place, number, self._vectors[0], self._heads[0]) + number
        self._ask_without_vector(0, kernels.FETCH_AND_ADD, place, number)
        return self._messages[-1, : kernels.HEADER_BYTES].view(np.int64).item(kernels.NUMBER) + number
