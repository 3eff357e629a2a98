"""A worker's shared vector behind sockets, and the thread that averages it during the computation.

One round trip makes an average of i and j: i sends its vector xi to j; the thread of j computes d = (xi - xj) / 2, adds
d to its vector and returns it; i subtracts d from its own. So

 * the sum over all ranks is conserved in any interleaving, since all changes are additions (integers: d is rounded
   down, exact; floats: up to the rounding of two additions);
 * averages that i and j begin with each other at once cross: the later answer is from a vector sent before the earlier
   change, so a part of the difference remains, or all of it with the other sign;
 * a read sees no average half done: one copy or addition holds the lock of the vector;
 * nobody waits for a lock of another rank, so there is no deadlock, and the thread serves partners while its rank
   computes, since its loop is compiled (`socket_kernels`) and needs no lock of Python;
 * a vector that is not finite reaches nobody: the partner refuses the average, and its requester counts it;
 * averages with a lost partner are counted and left out.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np
from typing_extensions import override

from training.transports import socket_kernels as kernels
from training.transports.basics import Vector
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.peers import connect
from training.transports.transport import AverageCounts, SharedVector
from training.transports.window_memory import refuse_different

if TYPE_CHECKING:
    from mpi4py import MPI

#: Lane of the connections for averages beside the computation; the last lane is for requests that the owner waits for.
_BESIDE: Final = 0
#: A waiting owner checks for signals after this time [ms].
_PATIENCE: Final = 100
_ALIGNMENT: Final = 64


class ServedVector:
    """A vector that a thread serves to partners; all ranks together make one.

    Args:
        comm: The ranks.
        vector: Its content.
        network: See `peers.connect`.
        servers: The ranks whose vectors others ask for.
        beside: Whether averages can run beside the computation.
    """

    def __init__(
        self, comm: MPI.Intracomm, vector: Vector, *, network: str | None, servers: Sequence[int], beside: bool
    ) -> None:
        refuse_different(comm, vector)
        self.rank = comm.rank
        self._peers = connect(comm, servers=servers, lanes=2 if beside else 1, network=network)
        self._pairs = (*socket.socketpair(), *socket.socketpair())
        self._wakes, woken, self._is_drained, self._drains = self._pairs
        own = self._peers.asking[_BESIDE] if beside else {}
        connections = [woken, *self._peers.serving, *own.values()]
        self._first_own = 1 + len(self._peers.serving)
        self._slots = {rank: self._first_own + number for number, rank in enumerate(own)}
        self._waited = {rank: each.fileno() for rank, each in self._peers.asking[-1].items()}
        self._own = vector.copy()
        self._half = np.array([0.5 if vector.dtype.kind == "f" else 0], vector.dtype)
        self._mutex = np.zeros(_ALIGNMENT, np.uint8)
        self._counters, self._seconds = np.zeros(kernels.NUM_COUNTERS, np.int64), np.zeros(1)
        message_bytes = -(-(kernels.HEADER_BYTES + vector.nbytes) // _ALIGNMENT) * _ALIGNMENT
        # The row behind those of the connections is for the requests that the owner waits for.
        self._region = np.zeros((len(connections) + 1, message_bytes), np.uint8)
        self._progress = np.zeros((len(connections) + 1, kernels.NUM_PROGRESS), np.int64)
        self._started = np.zeros(len(connections))
        self._polled = np.array([kernels.poll_entry(each.fileno()) for each in connections], np.int16)
        self._ask_polled = np.zeros(kernels.POLL_WORDS, np.int16)
        self._error: BaseException | None = None
        kernels.init_mutex(self._mutex)
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, name="averages", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """End the thread and close the connections of this rank."""
        self._counters[kernels.IS_ENDING] = 1
        self._wakes.send(b"-")
        self._thread.join()
        self._peers.close()
        for each in self._pairs:
            each.close()

    def _ask_without_vector(self, rank: int, kind: int, place: int, number: int) -> None:
        kernels.prepare(kind, place, number, self._region[-1], self._progress[-1])
        if self._ask(rank) != kernels.DONE:
            mpi = load_mpi()
            raise mpi.Exception(mpi.ERR_PROC_FAILED)

    def _ask(self, rank: int) -> int:
        """Send the prepared request and wait for its answer: DONE or LOST."""
        descriptor = self._waited.get(rank)
        if descriptor is None:
            return kernels.LOST
        message, progress, state = self._region[-1], self._progress[-1], kernels.WAITING
        while state == kernels.WAITING:
            # Between two calls, Python handles signals.
            self._raise_error_of_thread()
            state = kernels.ask(descriptor, self._ask_polled, message, progress, _PATIENCE)
        if state == kernels.LOST:
            del self._waited[rank]
        return state

    def _serve(self) -> None:
        own, times = (self._own, self._half, self._mutex, self._counters), (self._seconds, self._drains.fileno())
        try:
            kernels.serve(self._first_own, self._polled, self._region, self._progress, self._started, *own, *times)
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._error = error

    def _raise_error_of_thread(self) -> None:
        if self._error is not None:
            raise self._error


class SocketSharedVector(ServedVector, SharedVector):
    """A shared vector whose partners reach it through sockets.

    Args:
        process: This rank.
        vector: Its content.
        network: See `peers.connect`.
        with_thread: Whether averages run beside the computation.
    """

    def __init__(self, process: MpiProcess, vector: Vector, *, network: str | None, with_thread: bool) -> None:
        super().__init__(process.comm, vector, network=network, servers=range(process.comm.size), beside=with_thread)
        self._process = process
        self._with_thread = with_thread
        self._waited_seconds = self._blocked_seconds = 0.0
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
            refused=counters.item(kernels.NUM_REFUSED),
            lost=counters.item(kernels.NUM_LOST),
            exchange_seconds=beside + self._waited_seconds,
            hidden_seconds=max(0.0, beside - self._blocked_seconds),
        )

    @override
    async def read(self, out: Vector) -> int:
        version = kernels.read(out, self._own, self._mutex, self._counters)
        self._received = self._counters.item(kernels.RECEIVED)
        return version

    @override
    async def read_of(self, rank: int, out: Vector) -> None:
        """Copy the vector of any rank.

        Raises:
            MPI.Exception: The rank is lost.
        """
        if rank == self.rank:
            await self.read(out)
            return
        self._ask_without_vector(rank, kernels.READ, 0, 0)
        np.copyto(out, self._region[-1, kernels.HEADER_BYTES :].view(out.dtype)[: out.size])

    @override
    async def add(self, change: Vector) -> int:
        version = kernels.add(change, self._own, self._mutex, self._counters)
        self._received = self._counters.item(kernels.RECEIVED)
        return version

    @override
    async def average_with(self, partner: int) -> None:
        self._average(partner)

    def _average(self, partner: int) -> None:
        self._process.refuse_non_partner(partner)
        started = perf_counter()
        kernels.prepare_average(self._region[-1], self._progress[-1], self._own, self._mutex)
        if self._ask(partner) == kernels.DONE:
            kernels.take_answer(self._region[-1], self._own, self._mutex, self._counters)
        else:
            self._counters[kernels.NUM_LOST] += 1
        self._waited_seconds += perf_counter() - started

    @override
    def begin_average_with(self, partner: int) -> bool:
        """Begin an average beside the computation; without a thread, make it at once."""
        if not self._with_thread:
            self._average(partner)
            return True
        self._process.refuse_non_partner(partner)
        started = perf_counter()
        connections = (self._polled, self._region, self._progress, self._started)
        state = kernels.begin(self._slots[partner], *connections, self._own, self._mutex, self._counters)
        if state == kernels.WAITING:
            self._wakes.send(b"-")
        self._skipped += state == kernels.BUSY
        self._blocked_seconds += perf_counter() - started
        return bool(state != kernels.BUSY)

    @override
    async def drain(self) -> None:
        started = perf_counter()
        self._counters[kernels.IS_DRAINING] = 1
        while self._counters[kernels.NUM_UNDER_WAY]:
            self._raise_error_of_thread()
            if select.select([self._is_drained], [], [], 1e-3 * _PATIENCE)[0]:
                self._is_drained.recv(_ALIGNMENT)
        self._counters[kernels.IS_DRAINING] = 0
        self._received = self._counters.item(kernels.RECEIVED)
        self._blocked_seconds += perf_counter() - started
        self.waited += perf_counter() - started

    @override
    async def close(self) -> None:
        """Close the vector; ranks that come early serve the others until all are here."""
        await self.drain()
        started = perf_counter()
        self._process.wait_for_all()
        self.waited += perf_counter() - started
        self.free()
        self._received = self._counters.item(kernels.RECEIVED)


class SocketCounters(ServedVector):
    """Numbers on rank 0 to which all ranks add at any time, without the help of rank 0.

    Args:
        comm: The ranks.
        number: Number of counters.
        network: See `peers.connect`.
    """

    def __init__(self, comm: MPI.Intracomm, number: int, *, network: str | None) -> None:
        super().__init__(comm, np.zeros(number, np.int64), network=network, servers=[0], beside=False)

    def add(self, place: int, number: int) -> int:
        """Add to a counter; returns its sum so far.

        Raises:
            MPI.Exception: Rank 0 is lost.
        """
        if self.rank == 0:
            return kernels.fetch_and_add(place, number, self._own, self._mutex) + number
        self._ask_without_vector(0, kernels.FETCH_AND_ADD, place, number)
        return self._region[-1, : kernels.HEADER_BYTES].view(np.int64).item(kernels.NUMBER) + number
