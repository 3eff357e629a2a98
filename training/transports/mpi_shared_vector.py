"""A worker's shared vector over MPI windows, and the thread that averages it beside the computation."""

from __future__ import annotations

import queue
import threading
from time import perf_counter
from typing import Final, Protocol

from typing_extensions import override

from training.transports.mpi_process import MpiProcess
from training.transports.transport import AverageCounts, SharedVector, Vector

#: The thread looks this often after what partners ask, where MPI answers them only within a call.
_POKE_SECONDS: Final = 1e-3


class Averaging(Protocol):
    """A protocol of pairwise averages: `LockedAveraging` or `AdditiveAveraging`."""

    message_bytes: int
    """Size of the header and vector."""
    received: int
    begun: int
    mixed_reads: int
    wait_seconds: float

    def read(self, out: Vector) -> None:
        """Copy the vector into `out`."""

    def add(self, change: Vector) -> None:
        """Add to the vector."""

    def average(self, partner: int) -> None:
        """Replace own and partner's vector by their average."""

    def take_counts(self) -> None:
        """Bring `received` and `begun` up to date, as all of the above do as well."""

    def free(self) -> None:
        """Give the window back, all ranks together."""


class MpiSharedVector(SharedVector):
    """A shared vector in the windows of MPI ranks.

    No deadlock: this rank's turn at MPI is taken before any window is locked, and windows are locked in the order of
    ranks (or not at all, protocol `additive`); in that common order nobody who holds something waits for what comes
    earlier. `read` and `add` wait for at most the one average of the thread.
    """

    def __init__(self, process: MpiProcess, averaging: Averaging, *, with_thread: bool, poke: bool) -> None:
        """Make one of a window.

        Args:
            process: This rank.
            averaging: The window and its protocol.
            with_thread: Whether averages go on beside the computation.
            poke: Whether partners need this rank to enter MPI now and then.
        """
        self._process = process
        self._turn = process.turn
        self._averaging = averaging
        self._with_thread = with_thread
        self._poke = poke
        self._exchange_seconds = 0.0
        self._skipped = 0
        #: Held while the thread has an average to make.
        self._under_way = threading.Lock()
        self._partners: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        if with_thread and poke:
            self._start_thread()

    @property
    @override
    def counts(self) -> AverageCounts:
        """Of partners' averages, those that were seen at the last call."""
        averaging = self._averaging
        return AverageCounts(
            averaging.begun,
            averaging.received,
            self._skipped,
            averaging.mixed_reads,
            averaging.wait_seconds,
            self._exchange_seconds,
        )

    @property
    def message_bytes(self) -> int:
        """Bytes that an average sends, and as many that it receives."""
        return self._averaging.message_bytes

    @override
    async def read(self, out: Vector) -> int:
        self._raise_error_of_thread()
        with self._turn:
            if self._poke:
                self._process.poke()
            self._averaging.read(out)
            return self._averaging.begun + self._averaging.received

    @override
    async def add(self, change: Vector) -> int:
        self._raise_error_of_thread()
        with self._turn:
            if self._poke:
                self._process.poke()
            self._averaging.add(change)
            return self._averaging.begun + self._averaging.received

    @override
    async def average_with(self, partner: int) -> None:
        self._raise_error_of_thread()
        self._refuse_non_partner(partner)
        self._average(partner)

    @override
    def begin_average_with(self, partner: int) -> None:
        """At once if there is no thread."""
        self._raise_error_of_thread()
        self._refuse_non_partner(partner)
        if not self._with_thread:
            self._average(partner)
        elif self._under_way.acquire(blocking=False):
            if self._thread is None:
                self._start_thread()
            self._partners.put(partner)
        else:
            self._skipped += 1

    @override
    async def drain(self) -> None:
        with self._under_way:
            self._raise_error_of_thread()
        with self._turn:
            self._averaging.take_counts()

    @override
    async def close(self) -> None:
        """Who comes early serves the others until all are here."""
        if self._thread is not None:
            self._partners.put(None)
            self._thread.join()
        self._process.wait_for_all()
        with self._turn:
            self._averaging.take_counts()
            self._averaging.free()
        self._raise_error_of_thread()

    def _average(self, partner: int) -> None:
        with self._turn:
            started = perf_counter()
            self._averaging.average(partner)
            self._exchange_seconds += perf_counter() - started

    def _refuse_non_partner(self, partner: int) -> None:
        comm = self._process.comm
        if partner == comm.rank or not 0 <= partner < comm.size:
            raise AssertionError(f"rank {comm.rank} of {comm.size} cannot average with rank {partner}")

    def _raise_error_of_thread(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _start_thread(self) -> None:
        # A daemon: where training fails, nobody is left to stop it.
        self._thread = threading.Thread(target=self._serve, name="averages", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """The thread: averages as asked for, until None is."""
        while (partner := self._next_partner()) is not None:
            try:
                self._average(partner)
            except BaseException as error:  # noqa: BLE001 - it is raised where the result would have been used
                self._error = error
            finally:
                self._under_way.release()

    def _next_partner(self) -> int | None:
        while self._poke and self._error is None:
            try:
                return self._partners.get(timeout=_POKE_SECONDS)
            except queue.Empty:
                self._serve_partners()
        return self._partners.get()

    def _serve_partners(self) -> None:
        try:
            with self._turn:
                self._process.poke()
        except BaseException as error:  # noqa: BLE001 - as above
            self._error = error
