"""The transport between workers that are ranks of MPI."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from typing_extensions import override

from training.cores import usable_cores
from training.errors import LaunchError
from training.transports.additive_averaging import AdditiveAveraging
from training.transports.basics import Vector
from training.transports.centre import Centre
from training.transports.loading import load_mpi
from training.transports.locked_averaging import LockedAveraging
from training.transports.mpi_centre import MpiCentre
from training.transports.mpi_process import MpiProcess, end_job_if_stuck
from training.transports.mpi_shared_vector import MpiSharedVector
from training.transports.mpi_sums import MpiSums
from training.transports.self_test import SelfTest, self_test
from training.transports.shards import Layout
from training.transports.socket_centre import SocketCentre
from training.transports.socket_shared_vector import SocketCounters, SocketSharedVector
from training.transports.transport import COUNTERS, CounterName, PendingSum, Transport
from training.transports.window_memory import ADVICE, allocate, refuse_different

if TYPE_CHECKING:
    from mpi4py import MPI

Protocol = Literal["auto", "locked", "additive", "sockets"]
Overlap = Literal["auto", "thread", "inline"]
_PROTOCOLS: Final[dict[str, type[LockedAveraging | AdditiveAveraging]]] = {
    "locked": LockedAveraging,
    "additive": AdditiveAveraging,
}
#: Time after which a thread that returns from MPI gets Python's lock from a computing thread [s]; the default is 5 ms.
_SWITCH_SECONDS: Final = 5e-5
#: Time to wait for the other thread's MPI call before all ranks are ended without it [s].
_GRACE_SECONDS: Final = 1.0


class MpiTransport(Transport):
    """A transport over MPI; its coroutines block and never suspend (see `run_now`)."""

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        protocol: Protocol = "auto",
        overlap: Overlap = "thread",
        network: str | None = None,
    ) -> None:
        """Connect the ranks, all together.

        Args:
            comm: The ranks; None: all ranks of the job.
            protocol: Protocol of the averages; see `locked_averaging`, `additive_averaging` and `socket_shared_vector`.
                `auto`: `locked` if all ranks share memory, else `sockets`.
            overlap: Whether a thread makes averages during the computation; else they are made at once. `auto`: a
                thread, unless all ranks share memory, reach it without their partner's help, and have fewer than two
                cores each.
            network: Network of the sockets; see `peers.connect`.

        Raises:
            LaunchError: This MPI lacks a needed feature.
        """
        self._mpi = load_mpi()
        self.network = network
        # A communicator of our own keeps our messages apart from others.
        self.comm: MPI.Intracomm = (comm or self._mpi.COMM_WORLD).Dup()
        share_memory = _share_memory(self.comm)
        one_thread = self._mpi.Query_thread() < self._mpi.THREAD_SERIALIZED
        self._tested: SelfTest | None = None
        self.protocol: Protocol = ("locked" if share_memory else "sockets") if protocol == "auto" else protocol
        self.overlap: Overlap = overlap
        if overlap == "auto":
            self.overlap = self._chosen_overlap(share_memory=share_memory, one_thread=one_thread)
        if self.overlap == "thread" and self.protocol != "sockets" and one_thread:
            raise LaunchError(
                "this MPI allows one thread only (no MPI_THREAD_SERIALIZED), so averages in its windows cannot overlap "
                "with the computation; set train.algorithm.exchange to sockets or train.algorithm.overlap to inline"
            )
        self.rank = self.comm.rank
        self.world_size = self.comm.size
        self.process = MpiProcess(self.comm)
        self._turn = self.process.turn
        #: A thread may call MPI beside the computation.
        self._with_thread = self.overlap == "thread" and not one_thread
        self._sums = MpiSums(self.process, self, with_thread=self._with_thread)
        #: Made by `open_counters`, thus by `share` and `centre`: synchronous methods need no sockets between hosts.
        self._counters: _Counters | SocketCounters | None = None
        self._waits = _CollectiveWaits(self.comm, self._turn)

    @override
    async def all_reduce_sum(self, vector: Vector) -> None:
        started = perf_counter()
        with self._turn:
            self.comm.Allreduce(self._mpi.IN_PLACE, vector)
        self.waited += self._waits.of(perf_counter() - started)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        return self._sums.begin(vector)

    @override
    async def broadcast(self, vector: Vector) -> None:
        with self._turn:
            self.comm.Bcast(vector, root=0)

    @override
    async def barrier(self) -> None:
        """Wait for all ranks; unlike MPI's own barrier, this leaves the core to slower ranks."""
        started = perf_counter()
        self.process.wait_for_all()
        self.waited += perf_counter() - started

    @override
    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        """Start to send and receive at once."""
        theirs = [np.empty_like(vector) for _ in neighbours]
        with self._turn:
            receives = [self.comm.Irecv(each, rank) for each, rank in zip(theirs, neighbours, strict=True)]
            sends = [self.comm.Isend(vector, rank) for rank in neighbours]
        return self._finish_exchange(receives, sends, theirs)

    async def _finish_exchange(
        self, receives: list[MPI.Request], sends: list[MPI.Request], theirs: list[Vector]
    ) -> list[Vector]:
        started = perf_counter()
        with self._turn:
            try:
                # Do not wait for the sends too: if a rank is lost, Open MPI ends all others for a cancelled send.
                self._mpi.Request.Waitall(receives)
                self._mpi.Request.Waitall(sends)
                # A large message leaves only when the neighbour is ready for it, so this is waiting too.
                self.waited += perf_counter() - started
            except self._mpi.Exception as error:
                self.process.raise_named(error)
        return theirs

    async def share(self, vector: Vector) -> MpiSharedVector | SocketSharedVector:
        """Make the vectors of all ranks accessible to each other.

        Raises:
            LaunchError: One-sided communication does not work, or no network connects the ranks.
        """
        await self.open_counters()
        if self.protocol == "sockets":
            with self._turn:
                return SocketSharedVector(
                    self.process, vector, network=self.network, with_thread=self.overlap == "thread"
                )
        with self._turn:
            tested = self._windows()
            averaging = _PROTOCOLS[self.protocol](self.comm, vector)
        return MpiSharedVector(self.process, averaging, with_thread=self._with_thread, poke=tested.target_must_help)

    @override
    async def centre(self, vector: Vector, *, shards: int = 1, segments: Mapping[str, float] | None = None) -> Centre:
        """Make the centre: in the windows of its owners, or behind their sockets if this is the protocol.

        Raises:
            LaunchError: One-sided communication does not work, or no network connects the ranks.
        """
        await self.open_counters()
        layout = Layout(vector, shards, segments or {}, world_size=self.world_size)
        with self._turn:
            refuse_different(self.comm, vector)
            if self.protocol == "sockets":
                return SocketCentre(
                    self.process, layout, vector, network=self.network, with_thread=self.overlap == "thread"
                )
            poke = self._windows().target_must_help
            return MpiCentre(self.process, layout, vector, with_thread=self._with_thread, poke=poke)

    @override
    async def open_counters(self) -> None:
        """Wait for all, who may come minutes apart, and make the counters."""
        self.process.wait_for_all()
        if self._counters is None:
            self._counters = self._make_counters()

    def _make_counters(self) -> _Counters | SocketCounters:
        if self.protocol == "sockets":
            return SocketCounters(self.comm, len(COUNTERS), network=self.network)
        with end_job_if_stuck(self.comm, doing="Allocating memory that ranks share", advice=ADVICE):
            return _Counters(self.comm)

    def _chosen_overlap(self, *, share_memory: bool, one_thread: bool) -> Overlap:
        """When averages are made if nobody says so."""
        if self.protocol == "sockets":
            return "thread"
        if one_thread:
            return "inline"
        cores = frozenset[int]().union(*self.comm.allgather(usable_cores()))
        has_cores = not share_memory or len(cores) >= 2 * self.comm.size
        return "thread" if has_cores or self._test().target_must_help else "inline"

    def _windows(self) -> SelfTest:
        """Test the windows before their first use, beside which a thread gets Python's lock soon."""
        if self._with_thread:
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        return self._test()

    def _test(self) -> SelfTest:
        if self._tested is None:
            with end_job_if_stuck(self.comm, doing="Testing memory that ranks share", advice=ADVICE):
                self._tested = self_test(self.comm)
        if self._tested.problems:
            raise LaunchError(
                f"{self._tested.library} reads or writes the memory of other workers wrongly: "
                f"{'; '.join(self._tested.problems)}. {ADVICE}"
            )
        return self._tested

    @override
    async def count(self, counter: CounterName, number: int) -> int:
        if self._counters is None:
            raise AssertionError("open_counters() was not awaited")
        with self._turn:
            return self._counters.add(COUNTERS.index(counter), number)

    @override
    def now(self) -> float:
        return perf_counter()

    def abort(self) -> None:
        """End all ranks now."""
        # Wait for a limited time: the other thread may wait for a lost rank.
        self._turn.acquire(timeout=_GRACE_SECONDS)
        self.comm.Abort(1)

    def close(self) -> None:
        """Free everything, all ranks together, after their shared vectors are closed."""
        self.process.wait_for_all()
        self._sums.close()
        with self._turn:
            if self._counters is not None:
                self._counters.free()
            self.comm.Free()


def _share_memory(comm: MPI.Intracomm) -> bool:
    """Whether all ranks are on one host."""
    host = comm.Split_type(load_mpi().COMM_TYPE_SHARED)
    is_one_host: bool = host.size == comm.size
    host.Free()
    return is_one_host


class _CollectiveWaits:
    """How much of the time of an all-reduce is waiting for the last rank.

    Ranks leave an all-reduce together, and the last to enter waits for nobody. So the shortest of its times is that of
    the communication, and the rest of a longer one is waiting. The ranks compare their times after one all-reduce in
    `_EVERY` (a barrier before it would change what is measured), and the others are taken to have the same share.
    """

    _EVERY: Final = 16
    _FADING: Final = 0.95

    def __init__(self, comm: MPI.Intracomm, turn: threading.Lock) -> None:
        self._comm, self._turn = comm, turn
        self._min = load_mpi().MIN
        self._own, self._least = np.zeros(1), np.zeros(1)
        self._count = 0
        self._seconds = self._waited = 0.0

    def of(self, seconds: float) -> float:
        """The time spent waiting in an all-reduce that took `seconds`; all ranks call it after each."""
        self._count += 1
        if self._count > self._EVERY and self._count % self._EVERY:
            return seconds * self._waited / self._seconds
        self._own[0] = seconds
        with self._turn:
            self._comm.Allreduce(self._own, self._least, self._min)
        waited: float = seconds - self._least.item()
        self._seconds = self._FADING * self._seconds + seconds
        self._waited = self._FADING * self._waited + waited
        return waited


class _Counters:
    """Numbers on rank 0 to which all ranks add at any time, without the help of rank 0."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._sum = load_mpi().SUM
        self._window = allocate(comm, len(COUNTERS) * np.dtype(np.int64).itemsize, {})
        self._own, self._before = np.zeros(1, np.int64), np.zeros(1, np.int64)
        # All accesses are atomic additions, so a shared lock is enough.
        self._window.Lock_all()

    def add(self, place: int, number: int) -> int:
        """Add to a counter; returns its sum so far."""
        self._own[0] = number
        self._window.Fetch_and_op(self._own, self._before, 0, place * self._own.itemsize, self._sum)
        self._window.Flush(0)
        return self._before.item() + number

    def free(self) -> None:
        self._window.Unlock_all()
        self._window.Free()
