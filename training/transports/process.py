"""This process as a rank of MPI: the communicator, who shares memory with it, one MPI call at a time, and sums."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from training.transports.basics import BackgroundThread, Backoff, Vector, load_mpi
from training.transports.transport import PendingSum, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

#: Longest nap of a worker that waits for all [s].
_LONGEST_NAP: Final = 1e-3
#: Interval at which MPI gets time for the sums, in the background and while a worker waits for one [s].
_SUMS_NAP: Final = 1e-4


class MpiProcess:
    """This process as a rank of a communicator.

    MPI is initialised for threads that take turns, so every caller of MPI holds `turn`.

    `shares_memory`: whether ranks of a host share memory; else they communicate as those of different hosts do.
    """

    def __init__(self, comm: MPI.Intracomm, *, shares_memory: bool) -> None:
        self.comm = comm
        self.turn = threading.Lock()
        of_host = comm.Split_type(load_mpi().COMM_TYPE_SHARED) if shares_memory else comm.Split(comm.rank)
        self.host = cast("MPI.Intracomm", of_host)
        """The ranks that share memory with this one."""
        self.on_host: list[int] = self.host.allgather(comm.rank)
        """Their numbers among all ranks."""

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks share memory."""
        return self.host.size == self.comm.size

    def wait_for_all(self) -> float:
        """A barrier that leaves the core and the turn to others meanwhile; returns the time spent waiting [s]."""
        started = time.perf_counter()
        with self.turn:
            request = self.comm.Ibarrier()
        backoff = Backoff(longest=_LONGEST_NAP)
        while True:
            with self.turn:
                if request.Test():
                    return time.perf_counter() - started
            backoff.pause()

    def free(self) -> None:
        """Free the communicators, all ranks together."""
        self.host.Free()
        self.comm.Free()


class MpiSum(PendingSum):
    """A sum over all ranks that has begun.

    `thread`: lets MPI advance the sum, since it does so only within a call; None: the sum advances while the worker
    waits.
    """

    def __init__(
        self, process: MpiProcess, worker: Transport, vector: Vector, *, thread: BackgroundThread | None
    ) -> None:
        self._process, self._worker, self._vector = process, worker, vector
        self._error: MPI.Exception | None = None
        self._has_ended = False
        with process.turn:
            self._request = process.comm.Iallreduce(load_mpi().IN_PLACE, vector)
        if thread is not None:
            thread.begin(self._advance())

    @override
    def is_done(self) -> bool:
        return self._ends() and self._error is None

    @override
    async def wait(self) -> None:
        started, backoff = time.perf_counter(), Backoff(longest=_SUMS_NAP)
        while not self._ends():
            backoff.pause()
        self._worker.waited += time.perf_counter() - started
        if self._error is not None:
            raise self._error

    async def _advance(self) -> None:
        # A call for one sum advances all.
        while not self._ends():
            time.sleep(_SUMS_NAP)

    def _ends(self) -> bool:
        """Whether the sum is there, or failed."""
        with self._process.turn:
            if not self._has_ended:
                try:
                    self._has_ended = self._request.Test()
                except load_mpi().Exception as error:
                    self._error, self._has_ended = error, True
            return self._has_ended
