"""A worker's shared vector in MPI windows, and the thread that averages it during the computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

from typing_extensions import override

from training.transports.additive_averaging import AdditiveAveraging
from training.transports.basics import Vector
from training.transports.beside import Beside
from training.transports.locked_averaging import LockedAveraging
from training.transports.mpi_process import MpiProcess
from training.transports.transport import AverageCounts, SharedVector


class MpiSharedVector(SharedVector):
    """A shared vector in the windows of MPI ranks.

    There is no deadlock: a rank takes its turn at MPI before it locks any window, and locks windows in the order of
    ranks (or not at all, protocol `additive`). In this common order, no holder waits for an earlier lock. `read` and
    `add` wait for at most one average of the thread.
    """

    def __init__(
        self, process: MpiProcess, averaging: LockedAveraging | AdditiveAveraging, *, with_thread: bool, poke: bool
    ) -> None:
        """Make a shared vector from a window.

        Args:
            process: This rank.
            averaging: The window and its protocol.
            with_thread: Whether a thread makes averages during the computation.
            poke: Whether partners need this rank to enter MPI regularly.
        """
        self._process = process
        self._averaging = averaging
        self._with_thread = with_thread
        self._exchange_seconds = 0.0
        self._skipped = self._refused = 0
        self._beside = Beside(process, with_thread=with_thread, poke=poke, name="averages")

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
            self._exchange_seconds,
            max(0.0, self._beside.beside_seconds - self._beside.blocked_seconds),
            self._refused,
        )

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
    def begin_average_with(self, partner: int) -> bool:
        """Begin an average in the thread; without a thread, make it at once."""
        self._process.refuse_non_partner(partner)
        if self._with_thread:
            is_begun = self._beside.begin(partial(self._average, partner))
            self._skipped += not is_begun
            return is_begun
        with self._own_turn():
            self._average(partner)
        return True

    @override
    async def drain(self) -> None:
        self.waited += self._beside.drain()
        with self._own_turn():
            self._averaging.take_counts()

    @override
    async def close(self) -> None:
        """Close the vector; ranks that come early serve the others until all are here."""
        self.waited += self._beside.close()
        with self._process.turn:
            self._averaging.take_counts()
            self._averaging.free()
        self._beside.raise_error()

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """The turn of the owner's thread at MPI; counts its waiting, for the other thread and for locks."""
        with self._beside.own_turn() as blocked:
            before = self._averaging.wait_seconds
            yield
            self.waited += blocked + self._averaging.wait_seconds - before

    def _average(self, partner: int) -> None:
        """Make an average; the caller has the turn."""
        started = perf_counter()
        if not self._averaging.average(partner):
            self._refused += 1
        self._exchange_seconds += perf_counter() - started
