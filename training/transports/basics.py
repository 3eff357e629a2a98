"""The base of all transports: vectors, coroutines that never suspend, MPI, and background work."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

if TYPE_CHECKING:
    from mpi4py import MPI

Vector = NDArray[Any]
T = TypeVar("T")

#: Number of pauses that only yield the core; together they take about a tenth of a millisecond.
_NUM_YIELDS: Final = 50
#: Length of the first nap after them [s].
_FIRST_NAP_SECONDS: Final = 1e-5


@dataclass(slots=True)
class ExchangeCounts:
    """Counters of one worker's averages with partners, or pushes to a server, so far."""

    begun: int = 0
    """Number of averages that this worker began and finished."""
    received: int = 0
    """Number of averages that partners made with this worker's vector."""
    pushes: int = 0
    """Number of shards that its pushes changed, but for those that a rule excludes."""
    skipped: int = 0
    """Number of averages or pushes not begun because the one before was under way, or a vector was
    not free."""
    occupied: int = 0
    """Number of pushes put off because another worker was at a shard."""
    refused: int = 0
    """Number of averages not made, or shards not changed, because the result was not finite."""
    lost: int = 0
    """Number of averages not made because the partner was lost."""
    wait_seconds: float = 0.0
    """Time spent waiting for locks [s]."""
    exchange_seconds: float = 0.0
    """Time of averages, or of pushes and pulls, waiting included [s]; it may overlap with the
    computation."""
    hidden_seconds: float = 0.0
    """Part of `exchange_seconds` in the background [s]."""
    bytes: int = 0
    """Bytes of pushes and pulls that it sent to other ranks, or got from them."""


def is_finite(vector: Vector) -> bool:
    """Return whether all elements are finite, and the sum of their squares does not overflow.

    One pass over the vector: the sum is finite only if every element is.

    Examples:
        >>> is_finite(np.array([1.0, -2.0])), is_finite(np.array([1.0, np.nan]))
        (True, False)
    """
    # Unlike `dot` it does not warn of an overflow.
    return math.isfinite(np.vdot(vector, vector))


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, such as all coroutines over MPI or of a single worker.

    Raises:
        AssertionError: The coroutine suspended, so it needs the simulator.

    Examples:
        >>> async def three() -> int:
        ...     return 3
        >>> run_now(three())
        3
    """
    # A coroutine that ends without suspending raises StopIteration, which has its result.
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise AssertionError("this coroutine waits for a simulator")


def load_mpi() -> ModuleType:
    """Return the module `mpi4py.MPI`, initialised for threads that take turns ("serialized").

    Only ranks may import it.

    With "multiple", mpi4py's default, some implementations refuse windows or take slower paths.
    """
    import mpi4py  # noqa: PLC0415 - see above

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: PLC0415 - see above

    return MPI


def poll_until(predicate: Callable[[], bool], *, max_nap_seconds: float = 1e-3) -> float:
    """Call a predicate again and again until it is true; return the time spent waiting [s].

    The first pauses only yield the core to who needs it; later ones are naps of growing length.
    Even the shortest nap takes 80 microseconds, with a length of 0 too: three times as long as a
    push of another worker.

    `max_nap_seconds`: longest nap [s]; each nap is twice as long as the one before up to this.
    """
    started = time.perf_counter()
    num_yields = 0
    nap_seconds = _FIRST_NAP_SECONDS
    while not predicate():
        if num_yields < _NUM_YIELDS:
            num_yields += 1
            os.sched_yield()
        else:
            time.sleep(nap_seconds)
            nap_seconds = min(2 * nap_seconds, max_nap_seconds)
    return time.perf_counter() - started


class MpiProcess:
    """This process as a rank of a communicator.

    MPI is initialised for threads that take turns, so every caller of MPI holds `mpi_lock`.

    `comm`: the communicator, which belongs to this object and which `free` frees. `shares_memory`:
    whether ranks of a host share memory; else they communicate as those of different hosts do.
    """

    def __init__(self, comm: MPI.Intracomm, *, shares_memory: bool) -> None:
        self.comm = comm
        self.mpi_lock = threading.Lock()
        """A thread holds it during each call of MPI."""
        if shares_memory:
            host: Any = comm.Split_type(load_mpi().COMM_TYPE_SHARED)
        else:
            # With its rank as the color, each rank gets a communicator of its own.
            host = comm.Split(comm.rank)
        self.host: MPI.Intracomm = host
        """The ranks that share memory with this one."""
        self.on_host: list[int] = self.host.allgather(comm.rank)
        """Their numbers in `comm`, this rank included."""

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return self.host.size == self.comm.size

    def wait_for_all(self) -> float:
        """Wait for all ranks, and leave the core and MPI to others meanwhile.

        Returns:
            The time spent waiting [s].
        """
        # A barrier that does not block, so that other threads can use MPI between the tests.
        with self.mpi_lock:
            request = self.comm.Ibarrier()

        def all_ranks_arrived() -> bool:
            with self.mpi_lock:
                return request.Test()

        return poll_until(all_ranks_arrived)

    def free(self) -> None:
        """Free the communicators, all ranks together."""
        self.host.Free()
        self.comm.Free()


class Background(ABC):
    """Work of a worker in parallel with its computation, one piece after the other.

    A piece is a coroutine, such as an average with a partner or a push to a server.
    """

    seconds = 0.0
    """Time of the finished pieces so far [s]."""
    blocked_seconds = 0.0
    """Part of `seconds` for which the worker waited in `drain` [s]."""

    @property
    def hidden_seconds(self) -> float:
        """Part of `seconds` in which the worker computed [s]."""
        return max(0.0, self.seconds - self.blocked_seconds)

    @property
    @abstractmethod
    def is_under_way(self) -> bool:
        """Whether the last piece has not ended."""

    @abstractmethod
    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Queue a piece of work behind the pieces before it, and return at once."""

    @abstractmethod
    async def drain(self) -> float:
        """Wait for the end of the last piece, and raise its error.

        Returns the time spent waiting [s].
        """


class BackgroundThread(Background):
    """A thread for coroutines that never suspend.

    It is a daemon, unlike the threads of `concurrent.futures`: nothing ends its work after a failed
    training.

    Examples:
        >>> async def nothing() -> None: ...
        >>> thread = BackgroundThread("sums")
        >>> thread.begin(nothing())
        >>> run_now(thread.drain()) < 10, thread.is_under_way
        (True, False)
        >>> thread.close()
    """

    def __init__(self, name: str) -> None:
        #: Pieces of work with the futures of their ends; None ends the thread.
        self._queue: queue.SimpleQueue[tuple[Future[None], Coroutine[Any, Any, object]] | None] = (
            queue.SimpleQueue()
        )
        #: End of the piece that was begun last; None if there is none, or `drain` waited for it.
        self._last: Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    @override
    def is_under_way(self) -> bool:
        return self._last is not None and not self._last.done()

    @override
    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Queue a piece of work behind the pieces before it; raise the error of the last one."""
        if self._last is not None and self._last.done():
            # This raises the error of the piece, if there was one.
            self._last.result()
        self._last = Future()
        self._queue.put((self._last, work))

    @override
    async def drain(self) -> float:
        """Wait for the end of the last piece, and raise its error.

        Returns the time spent waiting [s]; 0 if an earlier call has waited for this piece.
        """
        if self._last is None:
            return 0.0
        started = time.perf_counter()
        last = self._last
        self._last = None
        # The thread works in order, so all earlier pieces have ended with the last.
        try:
            last.result()
        finally:
            wait_seconds = time.perf_counter() - started
            self.blocked_seconds += wait_seconds
        return wait_seconds

    def close(self) -> None:
        """End the thread after its last piece."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Do the pieces in order until `close`; the error of one goes into its future."""
        while (entry := self._queue.get()) is not None:
            future, work = entry
            started = time.perf_counter()
            try:
                run_now(work)
            except BaseException as error:  # noqa: BLE001 - the worker raises it
                future.set_exception(error)
            else:
                self.seconds += time.perf_counter() - started
                future.set_result(None)
