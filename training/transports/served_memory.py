"""Records in the memory of ranks; ranks of a host reach them directly, others through a compiled thread."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from training.transports import serving
from training.transports.basics import Vector
from training.transports.host_memory import HostMemory, aligned
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.mutexes import HEAD_BYTES, init_head
from training.transports.peers import Peers, connect

#: A waiting owner checks for signals after this time [ms].
_PATIENCE: Final = 100


class ServedMemory:
    """Records with a mutex and counters; all ranks together make them, fill them in, and `open` them.

    Args:
        process: This rank.
        owners: The rank in whose memory each record is.
        sizes: Number of elements in a row of each record.
        dtype: Type of the elements.
        num_rows: Number of rows of each record.
    """

    def __init__(
        self, process: MpiProcess, owners: Sequence[int], sizes: Sequence[int], dtype: Any, *, num_rows: int = 1
    ) -> None:
        self.process, self.rank = process, process.comm.rank
        self._owners, self._sizes = owners, sizes
        itemsize = np.dtype(dtype).itemsize
        distances = [aligned(size * itemsize) for size in sizes]
        #: Number of records, and bytes, of each rank so far.
        numbers: Counter[int] = Counter()
        ends: Counter[int] = Counter()
        self._numbers, starts = [], []
        for owner, distance in zip(owners, distances, strict=True):
            self._numbers.append(numbers[owner])
            starts.append(ends[owner])
            numbers[owner] += 1
            ends[owner] += HEAD_BYTES + num_rows * distance
        self._memory = HostMemory(process.host, max(HEAD_BYTES, ends[self.rank]))
        self.heads: dict[int, Vector] = {}
        """Mutex and counters of the records on this host."""
        self.rows: dict[int, Vector] = {}
        """(num_rows, size): their content."""
        for key, (owner, size, start, distance) in enumerate(zip(owners, sizes, starts, distances, strict=True)):
            if owner in process.on_host:
                record = self._memory.region(process.on_host.index(owner))[start:]
                self.heads[key] = record[:HEAD_BYTES]
                content = record[HEAD_BYTES:][: num_rows * distance].view(dtype)
                self.rows[key] = content.reshape(num_rows, -1)[:, :size]
        self.own = [key for key, owner in enumerate(owners) if owner == self.rank]
        """The records of this rank."""
        for key in self.own:
            init_head(self.heads[key])
        region = self._memory.region(process.on_host.index(self.rank))
        table = [(starts[key], sizes[key], distances[key] // itemsize) for key in self.own]
        half = np.array([0.5 if np.dtype(dtype).kind == "f" else 0], dtype)
        self._served = serving.Served(region, region.view(dtype), np.array(table, np.int64).reshape(-1, 3), half)
        self._message_bytes = serving.HEADER_BYTES + max(max(num_rows * each, 8 * each) for each in distances)
        self._error: BaseException | None = None
        self._peers = Peers({}, [])
        self._thread = threading.Thread(target=self._serve, name="serving", daemon=True)

    def open(self, *, network: str | None) -> None:
        """Let others reach the records, which are filled in; `network`: see `peers.connect`."""
        self.process.host.Barrier()
        if self.process.is_one_host:
            return
        self._peers = connect(self.process, servers=sorted(set(self._owners)), network=network)
        serving_to = self._peers.serving
        rows = len(serving_to) + 1
        polled = [serving.poll_entry(each.fileno()) for each in serving_to]
        self._connections = serving.Connections(
            np.array(polled, np.int16).reshape(-1, serving.POLL_WORDS),
            np.zeros((rows, self._message_bytes), np.uint8),
            np.zeros((rows, serving.NUM_PROGRESS), np.int64),
            np.zeros((rows, max(self._sizes)), np.int64),
        )
        self._ask_polled = np.zeros(serving.POLL_WORDS, np.int16)
        # A daemon, since nothing stops the thread after a failed training.
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
        self._memory.free()

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
        """Send a request about a record of another host; returns the header of the answer, if there is one.

        Raises:
            MPI.Exception: The owner is lost.
        """
        message, progress = self._connections.messages[-1], self._connections.progress[-1]
        end = serving.HEADER_BYTES
        for each in body:
            message[end : end + each.nbytes] = each.view(np.uint8)
            end += each.nbytes
        serving.prepare(kind, self._numbers[key], place, number, end - serving.HEADER_BYTES, message, progress)
        if self._ask(self._owners[key], is_answered=is_answered) == serving.LOST:
            mpi = load_mpi()
            raise mpi.Exception(mpi.ERR_PROC_FAILED)
        header: Vector = message[: serving.HEADER_BYTES].view(np.int64)
        return header

    def body(self, dtype: Any) -> Vector:
        """What follows the header of the last answer."""
        values: Vector = self._connections.messages[-1, serving.HEADER_BYTES :].view(dtype)
        return values

    def average(self, partner: int, own: Vector, head: Vector) -> bool:
        """Average a vector with that of a rank of another host; returns whether that is there."""
        message, progress = self._connections.messages[-1], self._connections.progress[-1]
        serving.prepare_average(message, progress, own, head)
        is_there = self._ask(partner) != serving.LOST
        if is_there:
            serving.take_answer(message, own, head)
        return is_there

    def _ask(self, rank: int, *, is_answered: bool = True) -> int:
        """Send the prepared request and wait for its answer: DONE or LOST."""
        connection = self._peers.asking.get(rank)
        if connection is None:
            return serving.LOST
        message, progress = self._connections.messages[-1], self._connections.progress[-1]
        state, descriptor = serving.WAITING, connection.fileno()
        while state == serving.WAITING:
            # Between two calls, Python handles signals.
            if self._error is not None:
                raise self._error
            state = serving.ask(descriptor, self._ask_polled, message, progress, _PATIENCE, is_answered)
        if state == serving.LOST:
            self._peers.asking.pop(rank).close()
        return state

    def _serve(self) -> None:
        try:
            serving.serve(self._connections, self._served)
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._error = error
