"""The memory that partners access: one window per rank, with a header of counters and then the vector.

There is one window for all tensors, since the number of such small messages determines their cost. `Win.Allocate` makes
the window, since only memory that MPI itself allocates is shared between the ranks of a host.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from training.errors import LaunchError
from training.transports.basics import Vector
from training.transports.loading import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

#: Size of a cache line [bytes]; the vector begins and ends at the border of a line.
ALIGNMENT: Final = 64
#: Folder of MPI's shared memory, and the variable that makes Open MPI use another one.
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - MPI makes files there
_OTHER_FOLDER: Final = "OMPI_MCA_osc_sm_backing_directory"
HEADER_BYTES: Final = ALIGNMENT
HEADER_WORDS: Final = HEADER_BYTES // 8
#: Words of the header, int64 each: averages that partners made with this vector, averages that its owner made, ...
RECEIVED: Final = 0
BEGUN: Final = 1
#: ... and, under the protocol `additive`, the numbers of begun and of ended changes of the vector.
WRITES_BEGUN: Final = 2
WRITES_ENDED: Final = 3

ADVICE: Final = (
    f"Is {_SHARED_MEMORY} full or small? (Containers often get 64 MB: docker --shm-size=1g, or let Open MPI use "
    f"another folder: {_OTHER_FOLDER}=/tmp.) Else try another of its components: OMPI_MCA_osc=^ucx, OMPI_MCA_osc=rdma."
)


class WindowMemory:
    """This rank's window, with views of its parts."""

    def __init__(self, comm: MPI.Intracomm, vector: Vector) -> None:
        """Make the windows, all ranks together, with vectors of the same length and type.

        Raises:
            LaunchError: MPI refuses the window.
        """
        refuse_different(comm, vector)
        self.window = allocate(comm, HEADER_BYTES + vector.nbytes, {HEADER_BYTES: vector})
        region = own_memory(self.window)
        self.header = region[:HEADER_BYTES].cast("q")
        self.vector_bytes = region[HEADER_BYTES : HEADER_BYTES + vector.nbytes]
        self.vector: Vector = np.frombuffer(self.vector_bytes, vector.dtype)

    def free(self) -> None:
        """Free the window, all ranks together."""
        # Access to a view of freed memory would crash the process, so remove the views.
        self.vector = np.empty(0, self.vector.dtype)
        self.header = self.vector_bytes = memoryview(b"")
        self.window.Free()


def allocate(comm: MPI.Intracomm, num_bytes: int, content: Mapping[int, Vector]) -> MPI.Win:
    """Make a window of at least `num_bytes` bytes in each rank, all ranks together: zeros, but for what it begins with.

    Args:
        comm: The ranks.
        num_bytes: Size [bytes].
        content: Arrays of this rank by their place [bytes].

    Raises:
        LaunchError: There is no room for the window, or MPI refuses it. The rank must then end the job, since others
            may already wait for it inside MPI forever.
    """
    mpi = load_mpi()
    _refuse_without_room(comm, num_bytes)
    info = mpi.Info.Create({"mpi_minimum_memory_alignment": str(ALIGNMENT), "same_size": "true"})
    try:
        window: MPI.Win = mpi.Win.Allocate(-(-num_bytes // ALIGNMENT) * ALIGNMENT, 1, info, comm)
    except mpi.Exception as error:
        raise LaunchError(
            f"MPI refuses memory that workers share, {num_bytes} bytes each ({error}). {ADVICE}"
        ) from error
    finally:
        info.Free()
    memory = own_memory(window)
    np.frombuffer(memory, np.uint8)[:] = 0
    for place, array in content.items():
        np.frombuffer(memory, array.dtype, array.size, place)[:] = array
    # No rank may read before all have written.
    comm.Barrier()
    return window


def _refuse_without_room(comm: MPI.Intracomm, num_bytes: int) -> None:
    """Check the free memory first: without room, Open MPI fails on one rank while others wait, or crashes later."""
    mpi = load_mpi()
    folder = Path(os.environ.get(_OTHER_FOLDER, _SHARED_MEMORY))
    if not folder.exists() and str(folder) == _SHARED_MEMORY:
        return
    host = comm.Split_type(mpi.COMM_TYPE_SHARED)
    needed = num_bytes * host.size
    host.Free()
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    if comm.allreduce(free < needed, op=mpi.LOR):
        raise LaunchError(
            f"workers of one host share {needed} bytes of memory through {folder}, where {free} are free on host "
            f"{socket.gethostname()} (or less on another one). {ADVICE}"
        )


def own_memory(window: MPI.Win) -> memoryview[int]:
    """This rank's part of a window, as bytes."""
    # mpi4py's own type is a buffer, but its type stubs do not declare it.
    memory: Any = window.tomemory()
    return memoryview(memory)


def refuse_different(comm: MPI.Intracomm, vector: Vector) -> None:
    """Refuse different vectors: a partner with a longer vector would write beyond the end of this one."""
    kinds = sorted(set(comm.allgather((vector.dtype.str, vector.shape))))
    if len(kinds) > 1 or vector.ndim != 1 or vector.dtype.kind not in "fi":
        raise AssertionError(f"workers share vectors of one length and one float or signed type, not {kinds}")
