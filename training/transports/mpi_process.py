"""This process as a rank of MPI: the communicator, who shares memory with it, and one MPI call at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, cast

from training.transports.backoff import Backoff
from training.transports.loading import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

#: Longest nap of a worker that waits for all [s].
_LONGEST_NAP: Final = 1e-3


class MpiProcess:
    """This process as a rank of a communicator.

    MPI is initialised for threads that take turns, so every caller of MPI holds `turn`.

    Args:
        comm: The ranks.
        shares_memory: Whether ranks of a host share memory; else they communicate as those of different hosts do.
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

    def wait_for_all(self) -> None:
        """A barrier that leaves the core and the turn to others meanwhile."""
        with self.turn:
            request = self.comm.Ibarrier()
        backoff = Backoff(longest=_LONGEST_NAP)
        while True:
            with self.turn:
                if request.Test():
                    return
            backoff.pause()

    def free(self) -> None:
        """Free the communicators, all ranks together."""
        self.host.Free()
        self.comm.Free()
