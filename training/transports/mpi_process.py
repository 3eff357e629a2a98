"""What the transport and its shared vectors have in common: the communicator, and one MPI call at a time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from training.transports.loading import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

#: A worker that waits for others looks this often; a core is left to them meanwhile.
_LONGEST_NAP: Final = 1e-3
_FIRST_NAP: Final = 1e-5
#: Seconds for what takes a tenth of one.
_PATIENCE: Final = 60.0


@contextmanager
def end_job_if_stuck(comm: MPI.Intracomm, *, doing: str, advice: str) -> Iterator[None]:
    """End all ranks, in words, if the block takes a minute: MPI that does not work often just waits."""

    def end() -> None:
        sys.stderr.write(f"{doing} took more than {_PATIENCE:.0f} seconds on rank {comm.rank}; giving up. {advice}\n")
        sys.stderr.flush()
        comm.Abort(1)

    timer = threading.Timer(_PATIENCE, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class MpiProcess:
    """This process among the ranks of a communicator.

    MPI is initialised for threads that take turns, so that whoever calls it holds `turn`. A thread takes its turn
    before any lock of a window and returns it after the last, never the other way round: waiting for a turn, it holds
    nothing that another rank could wait for.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._mpi = load_mpi()
        self.comm = comm
        self.turn = threading.Lock()

    def num_lost(self) -> int:
        """How many ranks are gone, as far as is known here; 0 where MPI would not survive it anyway."""
        # News of a loss arrive within a call.
        self.poke()
        try:
            failed = self.comm.Get_failed()
        except (NotImplementedError, self._mpi.Exception):
            return 0
        try:
            return failed.size
        finally:
            failed.Free()

    def raise_named(self, error: MPI.Exception) -> NoReturn:
        """Raise an error that may come from the loss of a rank without saying so."""
        if self.num_lost():
            raise self._mpi.Exception(self._mpi.ERR_PROC_FAILED) from error
        raise error

    def poke(self) -> None:
        """Let MPI work off what partners ask of this rank; some implementations do that only within a call."""
        # From itself: from any rank would raise once one is lost.
        self.comm.Iprobe(self.comm.rank)

    def wait_for_all(self) -> None:
        """A barrier that leaves the core, and the turn, to others meanwhile, and goes on serving partners."""
        with self.turn:
            request = self.comm.Ibarrier()
        nap = _FIRST_NAP
        while True:
            with self.turn:
                try:
                    if request.Test():
                        return
                except self._mpi.Exception as error:
                    self.raise_named(error)
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
