"""Pairwise averages under exclusive locks: a read never sees a half-changed vector.

An average of i and j locks both windows, the lower rank first, reads the partner's vector, replaces both vectors by
their average, and unlocks. No other rank reads or writes them meanwhile. So

 * the sum over all ranks is conserved: xi + xj becomes twice (xi + xj) / 2 (for floats up to the rounding of one
   addition). For integers, d = (xj - xi) // 2 is added on one side and subtracted on the other, which is exact;
 * no change is lost: a rank makes its own changes under the lock of its own window;
 * there is no deadlock: the holder of a lock waits only for locks of higher ranks, so the holder of the highest lock
   never waits, and releases it within one copy. MPI may delay locking until the first use of a lock, so the first lock
   is used, by a read of the vector, before the second is requested. (MPI never delays the lock of a rank's own window,
   as the standard demands, since it guards memory that is used without MPI.)
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from training.transports.loading import load_mpi
from training.transports.transport import Vector
from training.transports.window_memory import BEGUN, HEADER_BYTES, RECEIVED, WindowMemory

if TYPE_CHECKING:
    from mpi4py import MPI


class LockedAveraging:
    """One rank's vector, averaged under exclusive locks."""

    mixed_reads = 0

    def __init__(self, comm: MPI.Intracomm, vector: Vector) -> None:
        mpi = load_mpi()
        self.message_bytes = HEADER_BYTES + vector.nbytes
        self.received = self.begun = 0
        self.wait_seconds = 0.0
        self._rank = comm.rank
        self._memory = WindowMemory(comm, vector)
        self._window = self._memory.window
        self._shared = mpi.LOCK_SHARED
        #: Buffer of the partner's header and vector, to receive and to send.
        region = np.zeros(self.message_bytes, np.uint8)
        self._message = (region, region.size, mpi.BYTE)
        self._their_header = region.data[:HEADER_BYTES].cast("q")
        self._their_bytes = region.data[HEADER_BYTES:]
        self._theirs: Vector = region[HEADER_BYTES:].view(vector.dtype)
        self._is_float = vector.dtype.kind == "f"
        #: An array, since numpy multiplies by it faster than by a scalar.
        self._half = np.array(0.5 if self._is_float else 0, vector.dtype)

    def read(self, out: Vector) -> None:
        """Copy the vector."""
        self._window.Lock(self._rank, self._shared)
        np.copyto(out, self._memory.vector)
        self._copy_counts()
        self._window.Unlock(self._rank)

    def add(self, change: Vector) -> None:
        """Add to the vector."""
        started = perf_counter()
        self._window.Lock(self._rank)
        self.wait_seconds += perf_counter() - started
        self._memory.vector += change
        self._copy_counts()
        self._window.Unlock(self._rank)

    def average(self, partner: int) -> None:
        """Replace the vectors of this rank and its partner by their average."""
        own, window = self._rank, self._window
        started = perf_counter()
        if own < partner:
            window.Lock(own)
            window.Lock(partner)
            locked = perf_counter()
            window.Get(self._message, partner)
            window.Flush(partner)
        else:
            window.Lock(partner)
            window.Get(self._message, partner)
            window.Flush(partner)
            window.Lock(own)
            locked = perf_counter()
        self.wait_seconds += locked - started
        self._take_average()
        window.Put(self._message, partner)
        window.Unlock(max(own, partner))
        window.Unlock(min(own, partner))

    def take_counts(self) -> None:
        """Bring `received` and `begun` up to date."""
        self._window.Lock(self._rank, self._shared)
        self._copy_counts()
        self._window.Unlock(self._rank)

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
