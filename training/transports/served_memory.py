"""Records in the memory of ranks; ranks of a host reach them directly, others through a compiled thread."""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from training.transports import serving
from training.transports.basics import Vector
from training.transports.host_memory import ALIGNMENT, HostMemory, aligned
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.mutexes import HEAD_BYTES, IS_DRAINING, IS_ENDING, NUM_UNDER_WAY, counters_of, init_head
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
        self._control = counters_of(region[:HEAD_BYTES])
        self._message_bytes = serving.HEADER_BYTES + max(max(num_rows * each, 8 * each) for each in distances)
        self._seconds = np.zeros(1)
        self._error: BaseException | None = None
        self._peers: Peers | None = None
        self._waited: dict[int, int] = {}
        self._slots: dict[int, int] = {}

    def open(self, *, network: str | None, lanes: int = 1) -> None:
        """Let others reach the records, which are filled in.

        Args:
            network: See `peers.connect`.
            lanes: Number of connections to each owner; the last one is for requests that this rank waits for.
        """
        self.process.host.Barrier()
        if self.process.is_one_host:
            return
        self._peers = connect(self.process, servers=sorted(set(self._owners)), lanes=lanes, network=network)
        self._waited = {rank: each.fileno() for rank, each in self._peers.asking[-1].items()}
        self._pairs = (*socket.socketpair(), *socket.socketpair())
        self._wakes, woken, self._is_drained, self._drains = self._pairs
        background = {rank: each for lane in self._peers.asking[:-1] for rank, each in lane.items()}
        connections = [woken, *self._peers.serving, *background.values()]
        first_own = 1 + len(self._peers.serving)
        self._slots = {rank: first_own + number for number, rank in enumerate(background)}
        rows = len(connections) + 1
        self._connections = serving.Connections(
            np.array([serving.poll_entry(each.fileno()) for each in connections], np.int16),
            np.zeros((rows, self._message_bytes), np.uint8),
            np.zeros((rows, serving.NUM_PROGRESS), np.int64),
            np.zeros((rows, max(self._sizes)), np.int64),
            np.zeros(rows),
        )
        self._ask_polled = np.zeros(serving.POLL_WORDS, np.int16)
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, args=(first_own,), name="serving", daemon=True)
        self._thread.start()

    def free(self) -> None:
        """End the thread, close the connections and free the memory, all ranks together."""
        if self._peers is not None:
            self._control[IS_ENDING] = 1
            self._wakes.send(b"-")
            self._thread.join()
            self._peers.close()
            for each in self._pairs:
                each.close()
        # Access to freed memory would crash the process.
        self._control = self._control.copy()
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
        if self.ask(self._owners[key], is_answered=is_answered) == serving.LOST:
            mpi = load_mpi()
            raise mpi.Exception(mpi.ERR_PROC_FAILED)
        header: Vector = message[: serving.HEADER_BYTES].view(np.int64)
        return header

    def body(self, dtype: Any) -> Vector:
        """What follows the header of the last answer."""
        values: Vector = self._connections.messages[-1, serving.HEADER_BYTES :].view(dtype)
        return values

    def ask(self, rank: int, *, is_answered: bool = True) -> int:
        """Send the prepared request and wait for its answer: DONE or LOST."""
        descriptor = self._waited.get(rank)
        if descriptor is None:
            return serving.LOST
        message, progress = self._connections.messages[-1], self._connections.progress[-1]
        state = serving.WAITING
        while state == serving.WAITING:
            # Between two calls, Python handles signals.
            self.raise_error()
            state = serving.ask(descriptor, self._ask_polled, message, progress, _PATIENCE, is_answered)
        if state == serving.LOST:
            del self._waited[rank]
        return state

    def finish_averages(self) -> None:
        """Wait for the end of the averages that are under way."""
        self._control[IS_DRAINING] = 1
        while self._control[NUM_UNDER_WAY]:
            self.raise_error()
            if select.select([self._is_drained], [], [], 1e-3 * _PATIENCE)[0]:
                self._is_drained.recv(ALIGNMENT)
        self._control[IS_DRAINING] = 0

    def raise_error(self) -> None:
        """Raise the error of the thread, if there was one."""
        if self._error is not None:
            raise self._error

    def _serve(self, first_own: int) -> None:
        try:
            serving.serve(first_own, self._connections, self._served, self._seconds, self._drains.fileno())
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._error = error
