"""Memory that the ranks of a host share: a region of each rank, which all of them read and write without MPI.

A mutex in the region guards what lies behind it; see `kernels`. A rank that shares with nobody has memory of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from training.errors import LaunchError
from training.transports.loading import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

#: Size of a cache line [bytes]; regions and what lies in them begin at the border of a line.
ALIGNMENT: Final = 64
#: Folder of MPI's shared memory, and the variable that makes Open MPI use another one.
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - MPI makes files there
_OTHER_FOLDER: Final = "OMPI_MCA_osc_sm_backing_directory"
_ADVICE: Final = (
    f"Is {_SHARED_MEMORY} full or small? Containers often get 64 MB: docker --shm-size=1g, or let Open MPI use another "
    f"folder: {_OTHER_FOLDER}=/tmp."
)


class HostMemory:
    """The regions of the ranks of this host.

    Args:
        comm: The ranks that share memory.
        num_bytes: Size of this rank's region [bytes].

    Raises:
        LaunchError: There is no room for the memory, or MPI refuses it. The rank must then end the job, since others
            may already wait for it inside MPI forever.
    """

    def __init__(self, comm: MPI.Intracomm, num_bytes: int) -> None:
        self._window: MPI.Win | None = None
        size = aligned(num_bytes)
        if comm.size == 1:
            # numpy aligns to 16 bytes only.
            raw = np.zeros(size + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            self._regions = [raw[start : start + size]]
            return
        mpi = load_mpi()
        _refuse_without_room(comm, size)
        info = mpi.Info.Create({"mpi_minimum_memory_alignment": str(ALIGNMENT)})
        try:
            self._window = mpi.Win.Allocate_shared(size, 1, info, comm)
        except mpi.Exception as error:
            raise LaunchError(f"MPI refuses {size} bytes of memory that workers share ({error}). {_ADVICE}") from error
        finally:
            info.Free()
        self._regions = [_bytes(self._window.Shared_query(rank)[0]) for rank in range(comm.size)]
        self._regions[comm.rank][:] = 0

    def region(self, rank: int) -> NDArray[np.uint8]:
        """The bytes of a rank, by its number among the ranks of the host."""
        return self._regions[rank]

    def free(self) -> None:
        """Free the memory, all ranks together; nobody may use a region after that."""
        self._regions = []
        if self._window is not None:
            self._window.Free()


def aligned(num_bytes: int) -> int:
    """The size that ends at the border of a cache line.

    Examples:
        >>> aligned(1), aligned(64)
        (64, 64)
    """
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _bytes(memory: Any) -> NDArray[np.uint8]:
    # mpi4py's own type is a buffer, but its type stubs do not declare it.
    return np.frombuffer(memory, np.uint8)


def _refuse_without_room(comm: MPI.Intracomm, num_bytes: int) -> None:
    """Check the free memory first: without room, Open MPI fails on one rank while others wait, or crashes later."""
    mpi = load_mpi()
    folder = Path(os.environ.get(_OTHER_FOLDER, _SHARED_MEMORY))
    if not folder.exists() and str(folder) == _SHARED_MEMORY:
        return
    needed = comm.allreduce(num_bytes)
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    if comm.allreduce(free < needed, op=mpi.LOR):
        raise LaunchError(
            f"workers of one host share {needed} bytes of memory through {folder}, where {free} are free on host "
            f"{socket.gethostname()}. {_ADVICE}"
        )
