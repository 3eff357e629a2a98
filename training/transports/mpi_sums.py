"""Sums over all MPI ranks in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from training.transports.background import BackgroundThread
from training.transports.backoff import Backoff
from training.transports.basics import Vector
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.transport import PendingSum, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

#: Interval at which MPI gets time for the sums, in the background and while a worker waits for one [s].
_NAP: Final = 1e-4


class MpiSum(PendingSum):
    """A sum that has begun.

    Args:
        process: This rank.
        worker: Waits for the sum.
        vector: MPI writes here until the end.
        thread: Lets MPI advance the sum, since it does so only within a call; None: the sum advances while the worker
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
            thread.begin(self._advance)

    @override
    def is_done(self) -> bool:
        return self._ends() and self._error is None

    @override
    async def wait(self) -> None:
        started, backoff = time.perf_counter(), Backoff(longest=_NAP)
        while not self._ends():
            backoff.pause()
        self._worker.waited += time.perf_counter() - started
        if self._error is not None:
            raise self._error

    def _advance(self) -> None:
        # A call for one sum advances all.
        while not self._ends():
            time.sleep(_NAP)

    def _ends(self) -> bool:
        """Whether the sum is there, or failed."""
        with self._process.turn:
            if not self._has_ended:
                try:
                    self._has_ended = self._request.Test()
                except load_mpi().Exception as error:
                    self._error, self._has_ended = error, True
            return self._has_ended
