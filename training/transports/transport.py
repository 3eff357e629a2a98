"""Communication of workers: the interfaces between the algorithms and MPI or the simulator.

Methods are coroutines so that the same algorithm runs on both: under MPI they block and never
suspend (see `basics.run_now`), in the simulator they suspend until the virtual clock has advanced.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Final, Literal, get_args

import numpy as np

from training.transports.basics import ExchangeCounts, Vector
from training.transports.parameter_server import Layout, ParameterServer

CounterName = Literal["samples", "tickets"]
"""Counters that all workers share: `samples` are the events used so far, on which the learning rate
depends; `tickets` are the work units (parts of an epoch) that workers have drawn."""
#: Their names, in the order of their memory.
COUNTERS: Final[tuple[CounterName, ...]] = get_args(CounterName)


class SharedVector:
    """A vector of one worker, which partners may average with theirs at any time.

    They do so without the worker's help. A partner is any other worker.

    In any interleaving, an average adds to one side what it subtracts from the other. So the sum
    over all workers is conserved, and no change by `add` is lost. This class is for a single
    worker, which has no partners.

    Args:
        vector: Its content, which is copied.
    """

    _wait_seconds: float = 0.0
    """Time that the owner has waited so far, for `waited` [s]."""

    def __init__(self, vector: Vector) -> None:
        self.values = vector.copy()
        """(n,) the content; partners may change it, so others read it by `read`."""

    @property
    def waited(self) -> float:
        """Time that the owner has waited in its calls, for locks or for its own thread [s]."""
        return self._wait_seconds

    @property
    def counts(self) -> ExchangeCounts:
        """Counters of this worker's averages so far."""
        return ExchangeCounts()

    async def read_from_rank(self, rank: int, out: Vector) -> None:  # noqa: ARG002 - there is one
        """Copy the present vector of any worker into `out`, without that worker's help."""
        np.copyto(out, self.values)

    async def read(self, out: Vector) -> int:
        """Copy the vector into `out`, as it is between two averages.

        Returns how often it was averaged so far, by this worker and by partners.
        """
        np.copyto(out, self.values)
        return 0

    async def add(self, change: Vector) -> int:
        """Add a change, (n,), to the vector.

        Returns how often the vector was averaged so far, by this worker and by partners.
        """
        self.values += change
        return 0

    async def average_with(self, partner: int) -> None:
        """Replace this vector and that of the rank `partner` by their average, and wait for it."""
        raise AssertionError(f"a single worker has no partner {partner}")

    async def begin_average_with(self, partner: int) -> bool:
        """Begin to average this vector with that of the rank `partner`.

        Where both share memory it is done at once; between hosts it runs in the background.

        Returns:
            Whether it was begun. It is skipped while the last one is under way, or if another
            worker uses one of both vectors.
        """
        raise AssertionError(f"a single worker has no partner {partner}")

    async def drain(self) -> None:
        """Wait for the end of all averages that this worker began."""

    async def close(self) -> None:
        """Free the vector; all workers together, after the last average."""


class PendingSum:
    """A sum over all workers that is under way; await it once.

    The sum replaces the vector that was given to `begin_all_reduce`. This class is for a single
    worker, whose sum is done at once.
    """

    def is_done(self) -> bool:
        """Return whether the vector is the sum."""
        return True

    def __await__(self) -> Generator[Any, Any, None]:
        return self.wait().__await__()

    async def wait(self) -> None:
        """Wait for the sum."""


class Transport:
    """One worker's connection to the other workers; this class is for a single worker.

    Workers communicate collectively (all call the same method together), with neighbours, by shared
    vectors, or by a parameter server.
    """

    rank: int = 0
    """Number of this worker, from 0."""
    world_size: int = 1
    """Number of workers."""
    waited: float = 0.0
    """Time that this worker has waited for others, of all its time in calls [s]."""

    def __init__(self) -> None:
        self._counters: Counter[CounterName] = Counter()

    async def all_reduce_sum(self, vector: Vector) -> None:
        """Replace the vector by its sum over all workers, on all workers."""

    def begin_all_reduce(self, vector: Vector) -> PendingSum:  # noqa: ARG002 - it is the sum
        """Begin to replace the vector by its sum over all workers, in the background.

        All workers begin the same sums in the same order; several may be under way. Nobody may read
        or change the vector before the result was awaited, or its `is_done` returned True.
        """
        return PendingSum()

    async def broadcast(self, vector: Vector) -> None:
        """Replace the vector by that of rank 0."""

    async def barrier(self) -> None:
        """Wait for all workers."""

    def begin_exchange(
        self, vector: Vector, neighbours: Sequence[int], *, senders: Sequence[int] | None = None
    ) -> Awaitable[list[Vector]]:
        """Begin to send the vector to the ranks `neighbours`, and to receive those of the senders.

        The vector must not change before the result is awaited. `senders`: the ranks that send
        theirs to this one; None: the neighbours.

        Returns:
            An awaitable of the vectors of the senders, in their order.
        """
        if neighbours or senders:
            raise AssertionError(
                f"a vector of {vector.size} for neighbours {neighbours}, which this worker lacks"
            )

        async def no_vectors() -> list[Vector]:
            return []

        return no_vectors()

    async def shared_vector(self, vector: Vector) -> SharedVector:
        """Make a shared vector with this content; all workers together."""
        return SharedVector(vector)

    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        """Make a vector that all workers share; all workers together.

        Args:
            content: (1 + num_moments, n) or (n,): the vector first, then the moments: what the
                rules that change it store for each element. Of each worker, only the elements of
                its own shards count.
            shards: Number of parts, each with a lock, and in the memory of one rank.
        """
        return ParameterServer(Layout(content.shape[-1], shards), content, now=self.now)

    async def open_counters(self) -> None:
        """Make `count` usable where no vector is shared; all workers together."""

    async def count(self, counter: CounterName, amount: int) -> int:
        """Add to a counter of all workers, which begins at 0; return its value after that.

        A ticket is exact: the worker waits for it. Samples are counted in the background, so that
        the latest of other workers may be missing.
        """
        self._counters[counter] += amount
        return self._counters[counter]

    def now(self) -> float:
        """Return the seconds on this transport's clock."""
        return time.perf_counter()
