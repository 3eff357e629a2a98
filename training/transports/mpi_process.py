"""The common part of the MPI transport and its shared vectors: the communicator, and one MPI call at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from training.transports.loading import load_mpi
from training.transports.pauses import Pauses

if TYPE_CHECKING:
    from mpi4py import MPI

#: Longest nap of a worker that waits for all [s].
_LONGEST_NAP: Final = 1e-3
#: Time limit for operations that normally take a tenth of a second [s].
_PATIENCE: Final = 60.0


@contextmanager
def end_job_if_stuck(comm: MPI.Intracomm, *, doing: str, advice: str) -> Iterator[None]:
    """End all ranks with a message if the block takes a minute, since a broken MPI often just waits."""

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
    """This process as a rank of a communicator.

    MPI is initialised for threads that take turns, so every caller of MPI holds `turn`. A thread takes its turn before
    the first lock of a window and returns it after the last. So a thread that waits for its turn holds nothing that
    another rank could wait for.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._mpi = load_mpi()
        self.comm = comm
        self.turn = threading.Lock()

    def num_lost(self) -> int:
        """Number of ranks known to be lost; 0 for an MPI that does not survive a loss."""
        # MPI notices a loss only within a call.
        self.poke()
        try:
            failed = self.comm.Get_failed()
        except (NotImplementedError, self._mpi.Exception):
            return 0
        try:
            return failed.size
        finally:
            failed.Free()

    def refuse_non_partner(self, partner: int) -> None:
        """Refuse an average with this rank itself, or with a rank that does not exist."""
        if partner == self.comm.rank or not 0 <= partner < self.comm.size:
            raise AssertionError(f"rank {self.comm.rank} of {self.comm.size} cannot average with rank {partner}")

    def raise_named(self, error: MPI.Exception) -> NoReturn:
        """Raise an error, as the loss of a rank if that is its cause."""
        if self.num_lost():
            raise self._mpi.Exception(self._mpi.ERR_PROC_FAILED) from error
        raise error

    def poke(self) -> None:
        """Let MPI serve requests of partners to this rank; some implementations do so only within a call."""
        # Probe for messages from this rank itself, since a probe for any rank raises after a loss.
        self.comm.Iprobe(self.comm.rank)

    def wait_for_all(self) -> None:
        """A barrier that leaves the core and the turn to others meanwhile, and continues to serve partners."""
        with self.turn:
            request = self.comm.Ibarrier()
        pauses = Pauses(longest=_LONGEST_NAP)
        while True:
            with self.turn:
                try:
                    if request.Test():
                        return
                except self._mpi.Exception as error:
                    self.raise_named(error)
            pauses.pause()
