"""Sums over all MPI ranks in the background."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from training.transports.backoff import Backoff
from training.transports.basics import Vector
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.transport import PendingSum, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

#: Interval at which MPI gets time for the sums, in the background and while a worker waits for one [s].
_NAP: Final = 1e-4


class MpiSums:
    """The sums of one rank; a thread lets MPI advance them, since it does so only within a call.

    Args:
        process: This rank.
        worker: Waits for the sums.
        with_thread: Whether there may be a thread; else the sums advance while the worker waits.
    """

    def __init__(self, process: MpiProcess, worker: Transport, *, with_thread: bool) -> None:
        self._process = process
        self._worker = worker
        self._with_thread = with_thread
        self._in_place = load_mpi().IN_PLACE
        self._begun: queue.SimpleQueue[_MpiSum | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, vector: Vector) -> PendingSum:
        """Begin a sum."""
        with self._process.turn:
            request = self._process.comm.Iallreduce(self._in_place, vector)
        begun = _MpiSum(self._process, self._worker, request, vector)
        if self._with_thread:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="sums", daemon=True)
                self._thread.start()
            self._begun.put(begun)
        return begun

    def close(self) -> None:
        """End the thread, after the last sum."""
        if self._thread is not None:
            self._begun.put(None)
            self._thread.join()

    def _serve(self) -> None:
        # A call for one of them advances all.
        while (begun := self._begun.get()) is not None:
            while not begun.has_ended():
                time.sleep(_NAP)


class _MpiSum(PendingSum):
    def __init__(self, process: MpiProcess, worker: Transport, request: MPI.Request, vector: Vector) -> None:
        self._process = process
        self._worker = worker
        self._request = request
        #: MPI writes here until the end.
        self._vector = vector
        self._error: MPI.Exception | None = None
        self._has_ended = False

    def has_ended(self) -> bool:
        """Whether the sum is there, or failed."""
        with self._process.turn:
            if not self._has_ended:
                try:
                    self._has_ended = self._request.Test()
                except load_mpi().Exception as error:
                    self._error, self._has_ended = error, True
            return self._has_ended

    @override
    def is_done(self) -> bool:
        return self.has_ended() and self._error is None

    @override
    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        started, backoff = time.perf_counter(), Backoff(longest=_NAP)
        while not self.has_ended():
            backoff.pause()
        self._worker.waited += time.perf_counter() - started
        if self._error is not None:
            raise self._error
