"""Pairwise averages without exclusive locks: every change of a vector is an addition.

An average of i and j reads both vectors, xi and xj, and adds d = (xj - xi) / 2 to one and -d to the other. MPI makes
each element's addition atomic. So

 * the sum over all ranks is conserved: for any xi and xj that were read, d enters twice with opposite signs (integers:
   d = (xj - xi) // 2, exact; floats: up to the rounding of two additions);
 * no change is lost: a rank's own changes are additions as well;
 * no rank waits for another.

The price: a read may see another average half done (some elements old, some new), and two simultaneous averages may use
the same old values. Such reads are counted. Each change increments `WRITES_BEGUN` first and `WRITES_ENDED` last. A
reader reads the number of ended changes before and of begun changes after its copy; if they are equal, nothing changed
in between.

The window is open to all ranks for its whole life (a shared lock), so exclusive locks must not be used on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from training.transports.basics import Vector, is_finite
from training.transports.loading import load_mpi
from training.transports.window_memory import (
    BEGUN,
    HEADER_BYTES,
    HEADER_WORDS,
    RECEIVED,
    WRITES_BEGUN,
    WRITES_ENDED,
    WindowMemory,
)

if TYPE_CHECKING:
    from mpi4py import MPI


class AdditiveAveraging:
    """One rank's vector, averaged by additions."""

    #: There are no locks to wait for.
    wait_seconds = 0.0

    def __init__(self, comm: MPI.Intracomm, vector: Vector) -> None:
        mpi = load_mpi()
        self.received = self.begun = self.mixed_reads = 0
        self._rank = comm.rank
        self._sum, self._no_op = mpi.SUM, mpi.NO_OP
        self._nothing = (None, 0, mpi.BYTE)
        self._in_header = (0, HEADER_WORDS, mpi.Datatype.fromcode(np.dtype(np.int64).char))
        self._in_vector = (HEADER_BYTES, vector.size, mpi.Datatype.fromcode(vector.dtype.char))
        self._one_begins = _ones(WRITES_BEGUN)
        self._one_ends = _ones(WRITES_ENDED)
        self._own_average_ends = _ones(WRITES_ENDED, BEGUN)
        self._their_average_ends = _ones(WRITES_ENDED, RECEIVED)
        self._is_float = vector.dtype.kind == "f"
        self._half = np.array(0.5 if self._is_float else 0, vector.dtype)
        self._own, self._theirs = _Copy(vector), _Copy(vector)
        self._memory = WindowMemory(comm, vector)
        self._window = self._memory.window
        self._window.Lock_all()

    def read(self, out: Vector) -> None:
        """Copy the vector."""
        self._read([(self._rank, self._own)])
        self._copy_counts()
        np.copyto(out, self._own.vector)

    def read_of(self, rank: int, out: Vector) -> None:
        """Copy the vector of any rank."""
        self._read([(rank, self._theirs)])
        np.copyto(out, self._theirs.vector)

    def add(self, change: Vector) -> None:
        """Add to the vector."""
        own, window = self._rank, self._window
        window.Get_accumulate(self._one_begins, self._own.before, own, self._in_header, self._sum)
        window.Flush(own)
        window.Accumulate(change, own, self._in_vector, self._sum)
        window.Flush(own)
        window.Get_accumulate(self._one_ends, self._own.after, own, self._in_header, self._sum)
        window.Flush(own)
        self._copy_counts()

    def average(self, partner: int) -> bool:
        """Add half the difference to this rank's vector and subtract it from the partner's, if it is finite.

        Returns:
            Whether it is.
        """
        own, window = self._rank, self._window
        self._read([(own, self._own), (partner, self._theirs)])
        plus, minus = self._own.vector, self._theirs.vector
        if self._is_float:
            np.subtract(minus, plus, plus)
            np.multiply(plus, self._half, plus)
            if not is_finite(plus):
                return False
        else:
            np.subtract(minus, plus, plus)
            np.floor_divide(plus, 2, plus)
        np.negative(plus, minus)
        window.Accumulate(self._one_begins, own, self._in_header, self._sum)
        window.Accumulate(self._one_begins, partner, self._in_header, self._sum)
        window.Flush_all()
        window.Accumulate(plus, own, self._in_vector, self._sum)
        window.Accumulate(minus, partner, self._in_vector, self._sum)
        window.Flush_all()
        window.Get_accumulate(self._own_average_ends, self._own.after, own, self._in_header, self._sum)
        window.Accumulate(self._their_average_ends, partner, self._in_header, self._sum)
        window.Flush_all()
        self._copy_counts()
        self.begun += 1
        return True

    def take_counts(self) -> None:
        """Bring `received` and `begun` up to date."""
        own = self._own
        self._window.Get_accumulate(self._nothing, own.after, self._rank, self._in_header, self._no_op)
        self._window.Flush(self._rank)
        self._copy_counts()

    def free(self) -> None:
        """Free the window, all ranks together."""
        self._window.Unlock_all()
        self._memory.free()

    def _read(self, copies: list[tuple[int, _Copy]]) -> None:
        """Read vectors of several ranks, each between two reads of its header; counts the mixed reads."""
        window = self._window
        for rank, copy in copies:
            window.Get_accumulate(self._nothing, copy.before, rank, self._in_header, self._no_op)
        window.Flush_all()
        for rank, copy in copies:
            window.Get_accumulate(self._nothing, copy.vector, rank, self._in_vector, self._no_op)
        window.Flush_all()
        for rank, copy in copies:
            window.Get_accumulate(self._nothing, copy.after, rank, self._in_header, self._no_op)
        window.Flush_all()
        for _, copy in copies:
            self.mixed_reads += copy.is_mixed()

    def _copy_counts(self) -> None:
        self.received = self._own.after.item(RECEIVED)
        self.begun = self._own.after.item(BEGUN)


class _Copy:
    """A copy of a vector, and of its header before and after."""

    def __init__(self, vector: Vector) -> None:
        self.vector = np.empty_like(vector)
        self.before = np.zeros(HEADER_WORDS, np.int64)
        self.after = np.zeros(HEADER_WORDS, np.int64)

    def is_mixed(self) -> bool:
        """Whether the vector changed during the copy: more changes begun after it than ended before it."""
        return self.after.item(WRITES_BEGUN) != self.before.item(WRITES_ENDED)


def _ones(*words: int) -> Vector:
    """A header that increments these words of another header."""
    header = np.zeros(HEADER_WORDS, np.int64)
    header[list(words)] = 1
    return header
