"""The transport between ranks of MPI, with their parameter server and sums in the background."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Sequence
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

import numpy as np
from typing_extensions import override

from training.transports import messages, serving
from training.transports.basics import BackgroundThread, MpiProcess, Vector, load_mpi, poll_until
from training.transports.counters import SharedCounters
from training.transports.kernels import CLOCK, counters_of, lock, try_lock, unlock
from training.transports.memory import Memory
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.shared_vector import MpiSharedVector
from training.transports.transport import CounterName, PendingSum, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

#: Time to wait for the other thread's MPI call before all ranks are ended without it [s].
_ABORT_GRACE_SECONDS: Final = 1.0
#: Interval at which MPI gets time for the sums, in the background and while a worker waits [s].
_SUMS_NAP_SECONDS: Final = 1e-4
#: Most bytes of a message that leaves at once; a larger one leaves within later calls of MPI. It is
#: the lowest of the limits of Open MPI, that of shared memory.
_AT_ONCE_BYTES: Final = 4096


class MpiTransport(Transport):
    """A transport over MPI; its coroutines block and never suspend (see `run_now`).

    Args:
        comm: The ranks; None: all ranks of the job.
        background: Whether sums, large messages to neighbours, and pushes to a server have a thread
            beside the computation.
        network: Network between hosts; see `peers.connect`.
        shares_memory: Whether ranks of a host share memory; else they use sockets, as between
            hosts.
    """

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        *,
        background: bool = False,
        network: str | None = None,
        shares_memory: bool = True,
    ) -> None:
        super().__init__()
        self._mpi = load_mpi()
        self._network = network
        # A communicator of our own keeps our messages apart from others.
        self.comm: MPI.Intracomm = (comm or self._mpi.COMM_WORLD).Dup()
        self.rank = self.comm.rank
        self.world_size = self.comm.size
        self.process = MpiProcess(self.comm, shares_memory=shares_memory)
        self._mpi_lock = self.process.mpi_lock
        self._background = background
        # Without support for threads by MPI, sums advance only while a worker waits for one.
        can_have_threads = self._mpi.Query_thread() >= self._mpi.THREAD_SERIALIZED
        self._sums_thread = BackgroundThread("sums") if background and can_have_threads else None
        #: Counters of all workers, in the memory of rank 0, from `open_counters` on. Synchronous
        #: methods need none, and so no sockets between hosts.
        self._shared_counters: SharedCounters | None = None
        self._waits = _CollectiveWaits(self.comm, self._mpi_lock)

    @override
    async def all_reduce_sum(self, vector: Vector) -> None:
        """Replace the vector by its sum over all ranks, and estimate the time of waiting in it."""
        started = perf_counter()
        with self._mpi_lock:
            self.comm.Allreduce(self._mpi.IN_PLACE, vector)
        self.waited += self._waits.wait_seconds(perf_counter() - started)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        return MpiSum(self.process, self, vector, thread=self._sums_thread)

    @override
    async def broadcast(self, vector: Vector) -> None:
        with self._mpi_lock:
            self.comm.Bcast(vector, root=0)

    @override
    async def barrier(self) -> None:
        """Wait for all ranks; unlike MPI's own barrier, this leaves the core to slower ranks."""
        self.waited += self.process.wait_for_all()

    @override
    def begin_exchange(
        self, vector: Vector, neighbours: Sequence[int], *, senders: Sequence[int] | None = None
    ) -> Awaitable[list[Vector]]:
        if senders is None:
            senders = neighbours
        received = [np.empty_like(vector) for _ in senders]
        sources = zip(received, senders, strict=True)
        with self._mpi_lock:
            requests = [self.comm.Irecv(buffer, sender) for buffer, sender in sources]
            requests += [self.comm.Isend(vector, rank) for rank in neighbours]
        if self._sums_thread is not None and vector.nbytes > _AT_ONCE_BYTES:
            self._sums_thread.begin(self._advance_exchange(requests))
        return self._finish_exchange(requests, received)

    async def _advance_exchange(self, requests: list[MPI.Request]) -> None:
        """Call MPI again and again until all messages of an exchange have arrived."""
        has_ended = False
        while not has_ended:
            sleep(_SUMS_NAP_SECONDS)
            with self._mpi_lock:
                has_ended = self._mpi.Request.Testall(requests)

    async def _finish_exchange(
        self, requests: list[MPI.Request], received: list[Vector]
    ) -> list[Vector]:
        """Wait for all messages of an exchange, and return the received vectors."""
        started = perf_counter()
        with self._mpi_lock:
            # A large message leaves when the neighbour is ready for it: this is waiting too.
            self._mpi.Request.Waitall(requests)
        self.waited += perf_counter() - started
        return received

    async def shared_vector(self, vector: Vector) -> MpiSharedVector:
        """Make a shared vector of each rank, which all others can reach; all ranks together."""
        await self.open_counters()
        with self._mpi_lock:
            return MpiSharedVector(self.process, vector, network=self._network)

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        """Make the server, with shards in the memory of the ranks; all ranks together."""
        await self.open_counters()
        layout = Layout(content.shape[-1], shards, world_size=self.world_size)
        with self._mpi_lock:
            return MpiServer(
                self.process, layout, content, network=self._network, with_thread=self._background
            )

    @override
    async def open_counters(self) -> None:
        """Make the counters, once, in the memory of rank 0; all ranks together.

        They may come minutes apart, and wait for each other first, since a connection waits for
        seconds only. They also wait until each has counted once. The first call loads compiled
        code, in up to seconds on a busy machine, in which the others would draw all tickets.
        """
        self.process.wait_for_all()
        if self._shared_counters is None:
            with self._mpi_lock:
                self._shared_counters = SharedCounters(self.process, network=self._network)
            await self.count("tickets", 0)
            self.process.wait_for_all()

    @override
    async def count(self, counter: CounterName, amount: int) -> int:
        """Add to a counter without the help of rank 0; see `SharedCounters`."""
        if self._shared_counters is None:
            raise AssertionError("open_counters() was not awaited")
        return self._shared_counters.count(counter, amount)

    def abort(self) -> None:
        """End all ranks of the job now, also those that wait inside MPI."""
        # Wait for a limited time: the other thread may wait for a lost rank.
        self._mpi_lock.acquire(timeout=_ABORT_GRACE_SECONDS)
        self.comm.Abort(1)

    def close(self) -> None:
        """Free everything, all ranks together, after their shared vectors are closed."""
        self.process.wait_for_all()
        if self._sums_thread is not None:
            self._sums_thread.close()
        with self._mpi_lock:
            if self._shared_counters is not None:
                self._shared_counters.free()
            self.process.free()


class _CollectiveWaits:
    """Estimates how much of the time of an all-reduce is waiting for the last rank.

    Ranks leave an all-reduce together, and the last to enter waits for nobody. So the shortest of
    its times is that of the communication, and the rest of a longer one is waiting. The ranks
    compare their times after one all-reduce in `_EVERY` (a barrier before it would change what is
    measured). The other all-reduces are assumed to have the same fraction of waiting.
    """

    _EVERY: Final = 16
    """The ranks compare the times of this number of first all-reduces, then of every 16th one."""
    _FADING: Final = 0.95
    """Weight of the earlier all-reduces at each new one that is compared."""

    def __init__(self, comm: MPI.Intracomm, mpi_lock: threading.Lock) -> None:
        self._comm, self._mpi_lock = comm, mpi_lock
        self._min = load_mpi().MIN
        #: (1,) each: this rank's time, and the shortest time of all [s].
        self._seconds, self._shortest = np.zeros(1), np.zeros(1)
        self._num_calls = 0
        #: Sums of times and of waits over the all-reduces that were compared; old ones fade [s].
        self._sum_of_seconds = self._sum_of_waits = 0.0

    def wait_seconds(self, seconds: float) -> float:
        """Return the time spent waiting in an all-reduce that took `seconds` [s].

        All ranks call it after each all-reduce, since some of these calls compare the times of all.
        """
        self._num_calls += 1
        # Between two comparisons, the fraction of waiting is that of the compared ones.
        if self._num_calls > self._EVERY and self._num_calls % self._EVERY:
            return seconds * self._sum_of_waits / self._sum_of_seconds
        self._seconds[0] = seconds
        with self._mpi_lock:
            self._comm.Allreduce(self._seconds, self._shortest, self._min)
        wait_seconds: float = seconds - self._shortest.item()
        self._sum_of_seconds = self._FADING * self._sum_of_seconds + seconds
        self._sum_of_waits = self._FADING * self._sum_of_waits + wait_seconds
        return wait_seconds


class MpiServer(ParameterServer):
    """A parameter server whose shards lie in the memory of their owners, which are ranks of MPI.

    Ranks of the owner's host lock a shard, read, apply the rule and write, without the owner's
    help. For ranks of other hosts, the compiled thread of the owner does this: lock (answered at
    once: whether it has the lock), get (answered by the clock and the elements), put and unlock,
    which need no answer: the next holder's get comes after them. So a push waits for two round
    trips. A put takes effect when all of it has arrived; if its rank is lost before, the shard
    stays as it is, and its lock is given back.

    `network`: see `peers.connect`. `with_thread`: whether a thread makes the pushes that
    `begin_push` begins; else they are made at once.
    """

    def __init__(
        self,
        process: MpiProcess,
        layout: Layout,
        content: Vector,
        *,
        network: str | None,
        with_thread: bool,
    ) -> None:
        self._thread = BackgroundThread("pushes") if with_thread else None
        super().__init__(
            layout, content, rank=process.comm.rank, now=perf_counter, background=self._thread
        )
        # One record a shard; a rank fills in those that it owns.
        self._memory = Memory(
            process, layout.owners, layout.sizes, content.dtype, num_rows=len(self._buffer)
        )
        for shard, rows in self._rows.items():
            self._memory.rows[shard][:] = rows
        # From here on, the base class reads and writes the shared memory of this host.
        self._rows = self._memory.rows
        self._clocks = {
            shard: counters_of(head)[CLOCK:] for shard, head in self._memory.heads.items()
        }
        self._memory.open(network=network)

    @override
    async def close(self) -> None:
        """Free the server; ranks that come early serve the others until all are here."""
        if self._thread is not None:
            self._thread.close()
        self.waited += self._memory.process.wait_for_all()
        self._clocks = {}
        with self._memory.process.mpi_lock:
            self._memory.free()
        await self._wait_for_own_push()

    @override
    async def _lock(self, shard: int) -> None:
        """Wait for the lock of a shard; on another host, by asking again and again."""
        if shard in self._rows:
            lock(self._memory.heads[shard])
        else:
            poll_until(lambda: self._try_lock(shard))

    def _try_lock(self, shard: int) -> bool:
        """Lock a shard if it is free, and return whether it was."""
        if shard in self._rows:
            return try_lock(self._memory.heads[shard])
        answer = self._memory.request(shard, messages.LOCK)
        return bool(answer["kind"] != serving.BUSY)

    @override
    async def _unlock(self, shard: int) -> None:
        if shard in self._rows:
            unlock(self._memory.heads[shard])
        else:
            self._memory.request(shard, messages.UNLOCK, has_answer=False)

    @override
    async def _is_occupied(self, shard: int) -> bool:
        """Return whether a worker has the lock of a shard, by trying to lock it."""
        is_free = self._try_lock(shard)
        if is_free:
            await self._unlock(shard)
        return not is_free

    @override
    async def _read_shard(self, shard: int, out: Vector, indices: Vector | None) -> int:
        """Copy the first rows of a locked shard into `out`, from memory or by a request.

        `indices`: elements of the shard to copy; None: all. Returns the shard's clock.
        """
        if shard in self._rows:
            return await super()._read_shard(shard, out, indices)
        if indices is None:
            answer = self._memory.request(shard, messages.GET, num_rows=len(out))
        else:
            answer = self._memory.request(
                shard, messages.GET, num_rows=len(out), num_indices=indices.size, body=[indices]
            )
        out[:] = self._memory.body(out.dtype)[: out.size].reshape(out.shape)
        return int(answer["clock"])

    @override
    async def _write_shard(
        self, shard: int, rows: Vector, indices: Vector | None, clock: int
    ) -> None:
        """Write all rows of a locked shard, and its clock, into memory or by a request.

        A request changes the elements of the last `_read_shard`, which the owner remembers, so
        `indices` are not sent again.
        """
        if shard in self._rows:
            await super()._write_shard(shard, rows, indices, clock)
        else:
            self._memory.request(
                shard, messages.PUT, num_rows=len(rows), clock=clock, body=[*rows], has_answer=False
            )


class MpiSum(PendingSum):
    """A sum over all ranks that has begun, and that replaces the vector when it arrives.

    `worker`: the transport whose `waited` grows by the time of `wait`. `thread`: lets MPI advance
    the sum, since it does so only within a call; None: the sum advances while the worker waits.
    """

    def __init__(
        self,
        process: MpiProcess,
        worker: Transport,
        vector: Vector,
        *,
        thread: BackgroundThread | None,
    ) -> None:
        self._process, self._worker, self._vector = process, worker, vector
        #: Error of MPI, such as a lost rank.
        self._error: MPI.Exception | None = None
        #: Whether the sum has arrived or failed; only `_has_finished` sets it.
        self._has_ended = False
        with process.mpi_lock:
            self._request = process.comm.Iallreduce(load_mpi().IN_PLACE, vector)
        if thread is not None:
            thread.begin(self._advance())

    @override
    def is_done(self) -> bool:
        return self._has_finished() and self._error is None

    @override
    async def wait(self) -> None:
        self._worker.waited += poll_until(self._has_finished, max_nap_seconds=_SUMS_NAP_SECONDS)
        if self._error is not None:
            raise self._error

    async def _advance(self) -> None:
        """Call MPI again and again until the sum has arrived or failed."""
        # A call for one sum advances all.
        while not self._has_finished():
            sleep(_SUMS_NAP_SECONDS)

    def _has_finished(self) -> bool:
        """Let MPI advance the sum; return whether it has arrived or failed."""
        with self._process.mpi_lock:
            if not self._has_ended:
                try:
                    self._has_ended = self._request.Test()
                except load_mpi().Exception as error:
                    self._error = error
                    self._has_ended = True
            return self._has_ended
