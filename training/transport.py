"""How ranks talk: the algorithms see this interface and nothing of MPI."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class Transport(Protocol):
    """Collective operations on float vectors, in place."""

    rank: int
    world_size: int

    def all_reduce_sum(self, vector: NDArray[Any]) -> None:
        """Replace the vector by its sum over all ranks, on all ranks."""

    def broadcast(self, vector: NDArray[Any]) -> None:
        """Replace the vector by that of rank 0."""

    def barrier(self) -> None:
        """Wait for all ranks."""


class SingleTransport:
    """One worker on its own."""

    rank = 0
    world_size = 1

    def all_reduce_sum(self, vector: NDArray[Any]) -> None:
        """The sum over one rank is the vector itself."""

    def broadcast(self, vector: NDArray[Any]) -> None:
        """Rank 0 has it already."""

    def barrier(self) -> None:
        """Nobody to wait for."""


class MpiTransport:
    """Ranks of an MPI job."""

    def __init__(self) -> None:
        import mpi4py  # noqa: PLC0415 - importing mpi4py.MPI initialises MPI, which only ranks may do

        mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI  # noqa: PLC0415

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD
        self.rank = self._comm.rank
        self.world_size = self._comm.size

    def all_reduce_sum(self, vector: NDArray[Any]) -> None:
        """Replace the vector by its sum over all ranks, on all ranks."""
        self._comm.Allreduce(self._mpi.IN_PLACE, vector)

    def broadcast(self, vector: NDArray[Any]) -> None:
        """Replace the vector by that of rank 0."""
        self._comm.Bcast(vector, root=0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def abort(self) -> None:
        """End all ranks now."""
        self._comm.Abort(1)
