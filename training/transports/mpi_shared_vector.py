"""A worker's shared vector in MPI windows, and the thread that averages it during the computation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final, Protocol

from typing_extensions import override

from training.transports.mpi_process import MpiProcess
from training.transports.transport import AverageCounts, SharedVector, Vector

#: Interval at which the thread serves partners, if MPI does so only within a call [s].
_POKE_SECONDS: Final = 1e-3


class Averaging(Protocol):
    """A protocol of pairwise averages: `LockedAveraging` or `AdditiveAveraging`."""

    message_bytes: int
    """Size of header and vector."""
    received: int
    begun: int
    mixed_reads: int
    wait_seconds: float

    def read(self, out: Vector) -> None:
        """Copy the vector into `out`."""

    def add(self, change: Vector) -> None:
        """Add to the vector."""

    def average(self, partner: int) -> bool:
        """Replace the vectors of this rank and its partner by their average; False: one of them is not finite."""

    def read_of(self, rank: int, out: Vector) -> None:
        """Copy the vector of any rank into `out`."""

    def take_counts(self) -> None:
        """Update `received` and `begun`, as all methods above also do."""

    def free(self) -> None:
        """Free the window, all ranks together."""


class MpiSharedVector(SharedVector):
    """A shared vector in the windows of MPI ranks.

    There is no deadlock: a rank takes its turn at MPI before it locks any window, and locks windows in the order of
    ranks (or not at all, protocol `additive`). In this common order, no holder waits for an earlier lock. `read` and
    `add` wait for at most one average of the thread.
    """

    def __init__(self, process: MpiProcess, averaging: Averaging, *, with_thread: bool, poke: bool) -> None:
        """Make a shared vector from a window.

        Args:
            process: This rank.
            averaging: The window and its protocol.
            with_thread: Whether a thread makes averages during the computation.
            poke: Whether partners need this rank to enter MPI regularly.
        """
        self._process = process
        self._turn = process.turn
        self._averaging = averaging
        self._with_thread = with_thread
        self._poke = poke
        self._exchange_seconds = self._beside_seconds = self._blocked_seconds = 0.0
        self._skipped = self._refused = 0
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
        """Counters so far; averages by partners as of the last call."""
        averaging = self._averaging
        return AverageCounts(
            averaging.begun,
            averaging.received,
            self._skipped,
            averaging.mixed_reads,
            averaging.wait_seconds,
            self._exchange_seconds,
            max(0.0, self._beside_seconds - self._blocked_seconds),
            self._refused,
        )

    @property
    def message_bytes(self) -> int:
        """Number of bytes that an average sends, equal to the number that it receives."""
        return self._averaging.message_bytes

    @override
    async def read(self, out: Vector) -> int:
        with self._own_turn():
            self._averaging.read(out)
            return self._averaging.begun + self._averaging.received

    @override
    async def add(self, change: Vector) -> int:
        with self._own_turn():
            self._averaging.add(change)
            return self._averaging.begun + self._averaging.received

    @override
    async def read_of(self, rank: int, out: Vector) -> None:
        with self._own_turn():
            self._averaging.read_of(rank, out)

    @override
    async def average_with(self, partner: int) -> None:
        self._process.refuse_non_partner(partner)
        with self._own_turn():
            self._average(partner)

    @override
    def begin_average_with(self, partner: int) -> None:
        """Begin an average in the thread; without a thread, make it at once."""
        self._raise_error_of_thread()
        self._process.refuse_non_partner(partner)
        if not self._with_thread:
            with self._own_turn():
                self._average(partner)
        elif self._under_way.acquire(blocking=False):
            if self._thread is None:
                self._start_thread()
            self._partners.put(partner)
        else:
            self._skipped += 1

    @override
    async def drain(self) -> None:
        started = perf_counter()
        with self._under_way:
            blocked = perf_counter() - started
            self._blocked_seconds += blocked
            self.waited += blocked
        with self._own_turn():
            self._averaging.take_counts()

    @override
    async def close(self) -> None:
        """Close the vector; ranks that come early serve the others until all are here."""
        if self._thread is not None:
            self._partners.put(None)
            self._thread.join()
        started = perf_counter()
        self._process.wait_for_all()
        self.waited += perf_counter() - started
        with self._turn:
            self._averaging.take_counts()
            self._averaging.free()
        self._raise_error_of_thread()

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """The turn of the owner's thread at MPI; counts its waiting, for the other thread and for locks."""
        self._raise_error_of_thread()
        started = perf_counter()
        with self._turn:
            blocked = perf_counter() - started
            self._blocked_seconds += blocked
            self.waited += blocked
            before = self._averaging.wait_seconds
            if self._poke:
                self._process.poke()
            yield
            self.waited += self._averaging.wait_seconds - before

    def _average(self, partner: int) -> float:
        """Make an average; the caller has the turn. Returns its duration [s]."""
        started = perf_counter()
        if not self._averaging.average(partner):
            self._refused += 1
        seconds = perf_counter() - started
        self._exchange_seconds += seconds
        return seconds

    def _raise_error_of_thread(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _start_thread(self) -> None:
        # A daemon, since nothing stops the thread after a failed training.
        self._thread = threading.Thread(target=self._serve, name="averages", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Main loop of the thread: make the requested averages until the request is None."""
        while (partner := self._next_partner()) is not None:
            try:
                with self._turn:
                    self._beside_seconds += self._average(partner)
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
