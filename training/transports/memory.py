"""Records in memory that the ranks of a host share, without MPI; ranks of other hosts reach them by a compiled thread.

A mutex in each record guards what lies behind it; see `kernels`.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from training.errors import LaunchError
from training.transports import kernels, serving
from training.transports.basics import MpiProcess, Vector, load_mpi
from training.transports.kernels import HEAD_BYTES, init_head
from training.transports.peers import Peers, connect

if TYPE_CHECKING:
    from mpi4py import MPI

#: Size of a cache line [bytes]; regions and what lies in them begin at the border of a line.
_ALIGNMENT: Final = 64
#: Folder of MPI's shared memory, and the variable that makes Open MPI use another one.
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - MPI makes files there
_OTHER_FOLDER: Final = "OMPI_MCA_osc_sm_backing_directory"
_ADVICE: Final = (
    f"Is {_SHARED_MEMORY} full or small? Containers often get 64 MB: docker --shm-size=1g, or let Open MPI use another "
    f"folder: {_OTHER_FOLDER}=/tmp."
)
#: A waiting owner checks for signals after this time [ms].
_PATIENCE: Final = 100


class Memory:
    """Records with a mutex and counters; all ranks together make them, fill them in, and `open` them.

    `owners`: the rank in whose memory each record is. `sizes`: number of elements in a row of each record. `num_rows`:
    number of rows of each record.

    Raises:
        LaunchError: There is no room for the memory, or MPI refuses it. The rank must then end the job, since others
            may already wait for it inside MPI forever.
    """

    def __init__(
        self,
        process: MpiProcess,
        owners: Sequence[int],
        sizes: Sequence[int],
        dtype: Any,
        *,
        num_rows: int = 1,
    ) -> None:
        self.process, self.rank = process, process.comm.rank
        self._owners = owners
        self._numbers = [owners[:key].count(owner) for key, owner in enumerate(owners)]
        self._longest = max(sizes)
        itemsize = np.dtype(dtype).itemsize
        row = -(-self._longest * itemsize // _ALIGNMENT) * _ALIGNMENT
        record = HEAD_BYTES + num_rows * row
        own = [key for key, owner in enumerate(owners) if owner == self.rank]
        self._window, regions = _regions(process.host, max(HEAD_BYTES, len(own) * record))
        self.heads: dict[int, Vector] = {}
        """Mutex and counters of the records on this host."""
        self.rows: dict[int, Vector] = {}
        """(num_rows, size): their content."""
        for key, (owner, number, size) in enumerate(zip(owners, self._numbers, sizes, strict=True)):
            if owner in process.on_host:
                region = regions[process.on_host.index(owner)][number * record :][:record]
                self.heads[key] = region[:HEAD_BYTES]
                self.rows[key] = region[HEAD_BYTES:].view(dtype).reshape(num_rows, -1)[:, :size]
        for key in own:
            init_head(self.heads[key])
        region = regions[process.on_host.index(self.rank)]
        half = np.array([0.5 if np.dtype(dtype).kind == "f" else 0], dtype)
        own_sizes = np.array([sizes[key] for key in own], np.int64)
        self._served = serving.Served(
            region, region.view(dtype), own_sizes, np.array([record, row]), half
        )
        self._message_bytes = serving.HEADER_BYTES + max(num_rows * row, 8 * self._longest)
        self._error: BaseException | None = None
        self._peers = Peers({}, [])
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, name="serving", daemon=True)

    def open(self, *, network: str | None) -> None:
        """Let others reach the records, which are filled in; `network`: see `peers.connect`."""
        self.process.host.Barrier()
        if self.process.is_one_host:
            return
        self._peers = connect(self.process, servers=sorted(set(self._owners)), network=network)
        rows = len(self._peers.serving) + 1
        polled = [serving.poll_entry(each.fileno()) for each in self._peers.serving]
        self._connections = serving.Connections(
            np.array(polled, np.int16).reshape(-1, serving.POLL_WORDS),
            np.zeros((rows, self._message_bytes), np.uint8),
            np.zeros((rows, serving.NUM_PROGRESS), np.int64),
            np.zeros((rows, self._longest), np.int64),
        )
        #: The last row is for the requests of this rank.
        self._message, self._progress = (
            self._connections.messages[-1],
            self._connections.progress[-1],
        )
        self._polled = np.zeros(serving.POLL_WORDS, np.int16)
        self._thread.start()

    def free(self) -> None:
        """Close the connections, which ends the thread, and free the memory, all ranks together."""
        for each in self._peers.serving:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._peers.close()
        # Access to freed memory would crash the process.
        self.heads.clear()
        self.rows.clear()
        if self._window is not None:
            self._window.Free()

    def request(
        self,
        key: int,
        kind: int,
        *,
        place: int = 0,
        number: int = 0,
        body: Sequence[Vector] = (),
        is_answered: bool = True,
    ) -> Vector:
        """Send a request about a record of another host; returns the header of the answer, if there is one."""
        end = serving.HEADER_BYTES
        for each in body:
            self._message[end : end + each.nbytes] = each.view(np.uint8)
            end += each.nbytes
        length = end - serving.HEADER_BYTES
        serving.prepare(
            kind, self._numbers[key], place, number, length, self._message, self._progress
        )
        if self._ask(self._owners[key], is_answered=is_answered) == serving.LOST:
            mpi = load_mpi()
            raise mpi.Exception(mpi.ERR_PROC_FAILED)
        header: Vector = self._message[: serving.HEADER_BYTES].view(np.int64)
        return header

    def body(self, dtype: Any) -> Vector:
        """What follows the header of the last answer."""
        values: Vector = self._message[serving.HEADER_BYTES :].view(dtype)
        return values

    def average(self, partner: int, own: Vector, head: Vector) -> bool:
        """Average a vector with that of a rank of another host; returns whether that is there."""
        if partner not in self._peers.asking:
            return False
        kernels.read(self.body(own.dtype), own, head, np.zeros(1))
        serving.prepare(serving.AVERAGE, 0, 0, 0, own.nbytes, self._message, self._progress)
        is_there = self._ask(partner) != serving.LOST
        if is_there:
            serving.take_answer(self._message, own, head)
        return is_there

    def _ask(self, rank: int, *, is_answered: bool = True) -> int:
        """Send the prepared request and wait for its answer: DONE or LOST."""
        connection = self._peers.asking.get(rank)
        if connection is None:
            return serving.LOST
        state, descriptor = serving.WAITING, connection.fileno()
        while state == serving.WAITING:
            # Between two calls, Python handles signals.
            if self._error is not None:
                raise self._error
            state = serving.ask(
                descriptor, self._polled, self._message, self._progress, _PATIENCE, is_answered
            )
        if state == serving.LOST:
            self._peers.asking.pop(rank).close()
        return state

    def _serve(self) -> None:
        try:
            serving.serve(self._connections, self._served)
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._error = error


def _regions(comm: MPI.Intracomm, num_bytes: int) -> tuple[MPI.Win | None, list[Vector]]:
    """The bytes of each rank of a host; those of a rank that shares with nobody need no window."""
    if comm.size == 1:
        # numpy aligns to 16 bytes only.
        raw = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
        return None, [raw[-raw.ctypes.data % _ALIGNMENT :][:num_bytes]]
    mpi = load_mpi()
    _refuse_without_room(comm, num_bytes)
    info = mpi.Info.Create({"mpi_minimum_memory_alignment": str(_ALIGNMENT)})
    try:
        window = mpi.Win.Allocate_shared(num_bytes, 1, info, comm)
    except mpi.Exception as error:
        raise LaunchError(
            f"MPI refuses {num_bytes} bytes of memory that workers share ({error}). {_ADVICE}"
        ) from error
    finally:
        info.Free()
    regions = [np.frombuffer(window.Shared_query(rank)[0], np.uint8) for rank in range(comm.size)]
    regions[comm.rank][:] = 0
    return window, regions


def _refuse_without_room(comm: MPI.Intracomm, num_bytes: int) -> None:
    """Check the free memory first: without room, Open MPI fails on one rank while others wait, or crashes later."""
    folder = Path(os.environ.get(_OTHER_FOLDER, _SHARED_MEMORY))
    if not folder.exists() and str(folder) == _SHARED_MEMORY:
        return
    needed = comm.allreduce(num_bytes)
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    if comm.allreduce(free < needed, op=load_mpi().LOR):
        raise LaunchError(
            f"workers of one host share {needed} bytes of memory through {folder}, where {free} are free on host "
            f"{socket.gethostname()}. {_ADVICE}"
        )
