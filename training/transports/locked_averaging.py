"""Pairwise averages under exclusive locks: a read never sees a half-changed vector.

An average of i and j locks both windows, the lower rank first, reads the partner's vector, replaces both vectors by
their average, and unlocks. No other rank reads or writes them meanwhile. So

 * the sum over all ranks is conserved: xi + xj becomes twice (xi + xj) / 2 (for floats up to the rounding of one
   addition). For integers, d = (xj - xi) // 2 is added on one side and subtracted on the other, which is exact;
 * no change is lost: a rank makes its own changes under the lock of its own window;
 * there is no deadlock: the holder of a lock waits only for locks of higher ranks, so the holder of the highest lock
   never waits, and releases it within one copy. MPI may delay locking until the first use of a lock, so each lock is
   used at once, by a read of one number, which also separates the waiting from the copy of the vector. (MPI never
   delays the lock of a rank's own window, as the standard demands, since it guards memory that is used without MPI.)
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from training.transports.basics import Vector, is_finite
from training.transports.loading import load_mpi
from training.transports.window_memory import BEGUN, HEADER_BYTES, RECEIVED, WindowMemory

if TYPE_CHECKING:
    from mpi4py import MPI


class LockedAveraging:
    """One rank's vector, averaged under exclusive locks."""

    mixed_reads = 0

    def __init__(self, comm: MPI.Intracomm, vector: Vector) -> None:
        mpi = load_mpi()
        self.received = self.begun = 0
        self.wait_seconds = 0.0
        self._rank = comm.rank
        self._memory = WindowMemory(comm, vector)
        self._window = self._memory.window
        self._shared, self._exclusive = mpi.LOCK_SHARED, mpi.LOCK_EXCLUSIVE
        self._probe = (np.zeros(1, np.int64), 1, mpi.INT64_T)
        #: Buffer of the partner's header and vector, to receive and to send.
        region = np.zeros(HEADER_BYTES + vector.nbytes, np.uint8)
        self._message = (region, region.size, mpi.BYTE)
        self._their_header = region.data[:HEADER_BYTES].cast("q")
        self._their_bytes = region.data[HEADER_BYTES:]
        self._theirs: Vector = region[HEADER_BYTES:].view(vector.dtype)
        self._is_float = vector.dtype.kind == "f"
        #: An array, since numpy multiplies by it faster than by a scalar.
        self._half = np.array(0.5 if self._is_float else 0, vector.dtype)

    def read(self, out: Vector) -> None:
        """Copy the vector."""
        self._lock(self._rank, self._shared)
        np.copyto(out, self._memory.vector)
        self._copy_counts()
        self._window.Unlock(self._rank)

    def read_of(self, rank: int, out: Vector) -> None:
        """Copy the vector of any rank; several ranks may read it at once."""
        self._lock(rank, self._shared)
        self._window.Get(self._message, rank)
        self._window.Flush(rank)
        np.copyto(out, self._theirs)
        self._window.Unlock(rank)

    def add(self, change: Vector) -> None:
        """Add to the vector."""
        self._lock(self._rank)
        self._memory.vector += change
        self._copy_counts()
        self._window.Unlock(self._rank)

    def average(self, partner: int) -> bool:
        """Replace the vectors of this rank and its partner by their average, if both are finite; returns whether."""
        window = self._window
        first, second = sorted((self._rank, partner))
        self._lock(first)
        self._lock(second)
        window.Get(self._message, partner)
        window.Flush(partner)
        are_finite = not self._is_float or (is_finite(self._memory.vector) and is_finite(self._theirs))
        if are_finite:
            self._take_average()
            window.Put(self._message, partner)
        window.Unlock(second)
        window.Unlock(first)
        return are_finite

    def take_counts(self) -> None:
        """Bring `received` and `begun` up to date."""
        self._lock(self._rank, self._shared)
        self._copy_counts()
        self._window.Unlock(self._rank)

    def _lock(self, rank: int, kind: int | None = None) -> None:
        """Lock a window and wait until it is locked."""
        started = perf_counter()
        self._window.Lock(rank, self._exclusive if kind is None else kind)
        if rank != self._rank:
            self._window.Get(self._probe, rank)
            self._window.Flush(rank)
        self.wait_seconds += perf_counter() - started

    def free(self) -> None:
        """Free the window, all ranks together."""
        self._memory.free()

    def _take_average(self) -> None:
        """Write the average of window and message into both, and count it in both headers."""
        own, theirs = self._memory.vector, self._theirs
        if self._is_float:
            np.add(own, theirs, theirs)
            np.multiply(theirs, self._half, theirs)
            self._memory.vector_bytes[:] = self._their_bytes
        else:
            difference = (theirs - own) // 2
            np.add(own, difference, own)
            np.subtract(theirs, difference, theirs)
        self._memory.header[BEGUN] += 1
        self._their_header[RECEIVED] += 1
        self._copy_counts()

    def _copy_counts(self) -> None:
        header = self._memory.header
        self.received = header[RECEIVED]
        self.begun = header[BEGUN]
