"""Records in memory that the ranks of a host share, without MPI.

Ranks of other hosts reach them by a compiled thread.

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
from training.transports import kernels, messages, serving
from training.transports.basics import MpiProcess, Vector, load_mpi
from training.transports.kernels import HEAD_BYTES, init_head
from training.transports.peers import Peers, connect
from training.transports.pushes import INDEX

if TYPE_CHECKING:
    from mpi4py import MPI

#: Size of a cache line [bytes]; regions, records and rows begin at the border of a line.
_ALIGNMENT: Final = 64
#: Folder of MPI's shared memory, and the variable that makes Open MPI use another one.
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - MPI makes files there
_FOLDER_VARIABLE: Final = "OMPI_MCA_osc_sm_backing_directory"
_ADVICE: Final = (
    f"Is {_SHARED_MEMORY} full or small? Containers often get 64 MB: docker --shm-size=1g, or let "
    f"Open MPI use another folder: {_FOLDER_VARIABLE}=/tmp."
)
#: Time after which a waiting rank checks for signals [ms].
_SIGNAL_CHECK_MILLISECONDS: Final = 100


class Memory:
    """Records that all ranks can read and change: each a head, with mutex and counters, then rows.

    The ranks of the owner's host reach a record in shared memory, those of other hosts by requests
    to the owner. All ranks together make the records, fill them in, and `open` them.

    Args:
        process: This rank.
        owners: The rank in whose memory each record is.
        sizes: Number of elements in a row of each record.
        dtype: Type of the elements.
        num_rows: Number of rows of each record.

    Raises:
        LaunchError: There is no room for the memory, or MPI refuses it. The rank must then end the
            job, since others may already wait for it inside MPI forever.
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
        self.process = process
        self.rank = process.comm.rank
        self._owners = owners
        #: Position of each record among those of its owner.
        self._positions = [owners[:record].count(owner) for record, owner in enumerate(owners)]
        # All records have room for the largest, so that their positions follow from their number.
        self._largest_size = max(sizes)
        row_bytes = _aligned(self._largest_size * np.dtype(dtype).itemsize)
        record_bytes = HEAD_BYTES + num_rows * row_bytes
        # A region is the memory of one rank; MPI needs at least some bytes of each.
        local_records = [record for record, owner in enumerate(owners) if owner == self.rank]
        region_bytes = max(HEAD_BYTES, len(local_records) * record_bytes)
        self._window, regions = _share_regions(process.host, region_bytes)

        self.heads: dict[int, Vector] = {}
        """Mutex and counters of the records on this host, (HEAD_BYTES,) uint8, by record."""
        self.rows: dict[int, Vector] = {}
        """(num_rows, size): content of the records on this host, by record."""
        # Views of the shared memory: each record of this host is a head, then its rows.
        for record, owner in enumerate(owners):
            if owner not in process.on_host:
                continue
            region = regions[process.on_host.index(owner)]
            start = self._positions[record] * record_bytes
            content = region[start : start + record_bytes]
            self.heads[record] = content[:HEAD_BYTES]
            # A row may be longer than the record needs, to fill whole cache lines.
            rows = content[HEAD_BYTES:].view(dtype).reshape(num_rows, -1)
            self.rows[record] = rows[:, : sizes[record]]
        for record in local_records:
            init_head(self.heads[record])

        local_region = regions[process.on_host.index(self.rank)]
        self._served = serving.Served(
            memory=local_region,
            values=local_region.view(dtype),
            sizes=np.array([sizes[record] for record in local_records], np.int64),
            strides=np.array([record_bytes, row_bytes]),
            half=np.array([0.5 if np.dtype(dtype).kind == "f" else 0], dtype),
        )
        # A body has all rows of a record, or the indices of all its elements.
        body_bytes = max(num_rows * row_bytes, _aligned(self._largest_size * INDEX.itemsize))
        #: Size of the longest message.
        self._message_bytes = messages.HEADER_BYTES + body_bytes
        #: Error of the thread that serves other hosts.
        self._error: BaseException | None = None
        #: Connections with ranks of other hosts; none before `open`.
        self._peers = Peers({}, [])
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, name="serving", daemon=True)

    def open(self, *, network: str | None) -> None:
        """Let others reach the records, which are filled in; all ranks together.

        If there are several hosts, it connects the ranks, and starts the thread that answers their
        requests. `network`: see `peers.connect`.
        """
        # Nobody may use a record before its owner has filled it in.
        self.process.host.Barrier()
        if self.process.is_one_host:
            return
        self._peers = connect(self.process, servers=sorted(set(self._owners)), network=network)
        polled = [messages.poll_entry(connection.fileno()) for connection in self._peers.serving]
        # One row for each connection, and one for this rank.
        num_rows = len(polled) + 1
        self._connections = serving.Connections(
            polled=np.array(polled, np.int16).reshape(-1, messages.POLL_WORDS),
            messages=np.zeros((num_rows, self._message_bytes), np.uint8),
            progress=np.zeros((num_rows, messages.NUM_PROGRESS), np.int64),
            indices=np.zeros((num_rows, self._largest_size), np.int64),
        )
        #: The last row is for the requests of this rank.
        self._message = self._connections.messages[-1]
        self._header = self._message[: messages.HEADER_BYTES].view(messages.HEADER)
        self._progress = self._connections.progress[-1]
        self._polled = np.zeros(messages.POLL_WORDS, np.int16)
        self._thread.start()

    def free(self) -> None:
        """Close the connections, which ends the thread, and free the memory, all ranks together."""
        # The other side may have closed before.
        for connection in self._peers.serving:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
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
        record: int,
        kind: int,
        *,
        body: Sequence[Vector] = (),
        has_answer: bool = True,
        **fields: int,
    ) -> Vector:
        """Send a request about a record of another host, and wait for its answer.

        `fields`, `body`: see `_write_request`. `has_answer`: whether the owner answers requests of
        this kind.

        Returns:
            The header of the answer, if there is one.

        Raises:
            MPI.Exception: The owner of the record is lost.
        """
        self._write_request(record, kind, body, **fields)
        _raise_if_lost(self._ask(self._owners[record], has_answer=has_answer))
        header: Vector = self._header[0]
        return header

    def begin_request(self, record: int, kind: int, **fields: int) -> None:
        """Send a request about a record of another host; `take_answer` takes its answer.

        No other request may be sent before that. `fields`: see `_write_request`.
        """
        self._write_request(record, kind, (), **fields)
        messages.prepare(self._message, self._progress)
        connection = self._peers.asking.get(self._owners[record])
        if connection is not None:
            # What the system does not take now, and a broken connection, are for `take_answer`.
            messages.send_remaining(connection.fileno(), self._message, self._progress)

    def take_answer(self, record: int, *, waits: bool) -> Vector | None:
        """Return the header of the answer to `begin_request`; None if it has not come.

        `waits`: whether to wait until it has come.

        Raises:
            MPI.Exception: The owner of the record is lost.
        """
        owner = self._owners[record]
        state = self._wait_for_answer(owner) if waits else self._advance(owner, milliseconds=0)
        _raise_if_lost(state)
        header: Vector = self._header[0]
        return None if state == messages.WAITING else header

    def _write_request(
        self,
        record: int,
        kind: int,
        body: Sequence[Vector],
        *,
        element: int = 0,
        amount: int = 0,
        num_rows: int = 0,
        num_indices: int = -1,
        clock: int = 0,
    ) -> None:
        """Write a request about a record into the message.

        The arguments but `body` are fields of `messages.HEADER`. `body`: arrays that follow the
        header.
        """
        # The arrays of the body lie behind the header without gaps.
        end = messages.HEADER_BYTES
        for array in body:
            self._message[end : end + array.nbytes] = array.view(np.uint8)
            end += array.nbytes
        body_bytes = end - messages.HEADER_BYTES
        # The owner numbers its own records only.
        position = self._positions[record]
        self._header[0] = (
            kind,
            position,
            element,
            amount,
            num_rows,
            num_indices,
            clock,
            body_bytes,
        )

    def body(self, dtype: Any) -> Vector:
        """Return what is behind the header of the last answer, as elements of a type; a view.

        It has room for the longest body, so the answer is only its beginning.
        """
        values: Vector = self._message[messages.HEADER_BYTES :].view(dtype)
        return values

    def average(self, partner: int, vector: Vector, head: Vector) -> bool:
        """Average a vector of this rank with that of a rank of another host.

        The vector is sent as it is now. The answer is half of the difference, which this rank
        subtracts from the vector as it is then.

        Returns:
            False if the rank is lost, and nothing was averaged.
        """
        if partner not in self._peers.asking:
            return False
        kernels.read(self.body(vector.dtype), vector, head, np.zeros(1))
        self._header[0] = (messages.AVERAGE, 0, 0, 0, 0, 0, 0, vector.nbytes)
        if self._ask(partner) == messages.LOST:
            return False
        serving.finish_average(self._message, vector, head)
        return True

    def _ask(self, rank: int, *, has_answer: bool = True) -> int:
        """Send the request in the message, and wait for its answer; return DONE or LOST."""
        messages.prepare(self._message, self._progress)
        return self._wait_for_answer(rank, has_answer=has_answer)

    def _wait_for_answer(self, rank: int, *, has_answer: bool = True) -> int:
        """Wait for the answer to the request in the message; return DONE or LOST."""
        state = messages.WAITING
        while state == messages.WAITING:
            # Between two calls, Python handles signals.
            state = self._advance(
                rank, milliseconds=_SIGNAL_CHECK_MILLISECONDS, has_answer=has_answer
            )
        return state

    def _advance(self, rank: int, *, milliseconds: int, has_answer: bool = True) -> int:
        """Send what remains of the request in the message, and receive what has come of its answer.

        The connection to a rank that is lost is closed and forgotten.

        Returns:
            DONE, LOST, or WAITING after this time without any event.
        """
        if self._error is not None:
            raise self._error
        connection = self._peers.asking.get(rank)
        if connection is None:
            return messages.LOST
        state: int = messages.ask(
            connection.fileno(),
            self._polled,
            self._message,
            self._progress,
            milliseconds,
            has_answer,
        )
        if state == messages.LOST:
            self._peers.asking.pop(rank).close()
        return state

    def _serve(self) -> None:
        """Answer the requests of other hosts until the connections close; keep an error."""
        try:
            serving.serve(self._connections, self._served)
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._error = error


def _raise_if_lost(state: int) -> None:
    """Raise MPI's error of a lost rank if this is the state of a request to it."""
    if state == messages.LOST:
        mpi = load_mpi()
        raise mpi.Exception(mpi.ERR_PROC_FAILED)


def _aligned(num_bytes: int) -> int:
    """Round up to whole cache lines."""
    # A floor division of the negative number rounds up.
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _share_regions(comm: MPI.Intracomm, num_bytes: int) -> tuple[MPI.Win | None, list[Vector]]:
    """Make memory that the ranks of a host share, `num_bytes` of each rank, filled with 0.

    `comm`: the ranks of the host; all call it together.

    Returns:
        The window, an object of MPI that owns the memory, and the bytes of each rank. A rank that
        shares with nobody needs no window.
    """
    if comm.size == 1:
        # numpy aligns to 16 bytes only.
        raw = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
        offset = -raw.ctypes.data % _ALIGNMENT
        return None, [raw[offset : offset + num_bytes]]
    mpi = load_mpi()
    _require_room(comm, num_bytes)
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
    # Each rank clears its own part.
    regions[comm.rank][:] = 0
    return window, regions


def _require_room(comm: MPI.Intracomm, num_bytes: int) -> None:
    """Raise LaunchError on all ranks of a host if their memory does not fit.

    Without this check, Open MPI fails on one rank while others wait, or crashes later. It makes the
    memory as a file in a folder, whose free space counts.
    """
    folder = Path(os.environ.get(_FOLDER_VARIABLE, _SHARED_MEMORY))
    if not folder.exists() and str(folder) == _SHARED_MEMORY:
        return
    num_bytes_of_all = comm.allreduce(num_bytes)
    free_bytes = shutil.disk_usage(folder).free if folder.exists() else 0
    lacks_room = free_bytes < num_bytes_of_all
    # All ranks must raise if one does; LOR is the logical or.
    if comm.allreduce(lacks_room, op=load_mpi().LOR):
        raise LaunchError(
            f"workers of one host share {num_bytes_of_all} bytes of memory through {folder}, where "
            f"{free_bytes} are free on host {socket.gethostname()}. {_ADVICE}"
        )
