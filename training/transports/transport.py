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
"""Counters of all workers: the samples of the learning rate's clock, and the tickets of the work
units."""
COUNTERS: Final[tuple[CounterName, ...]] = get_args(CounterName)


class SharedVector:
    """A vector of one worker.

    Partners may average it with theirs at any time, without the worker's help.

    In any interleaving, an average adds to one side what it subtracts from the other. So the sum
    over all workers is conserved, and no change by `add` is lost. This class is for a single
    worker, which has no partners.

    Args:
        vector: Its content, which is copied.
    """

    _wait_seconds: float = 0.0

    def __init__(self, vector: Vector) -> None:
        self.values = vector.copy()

    @property
    def waited(self) -> float:
        """Time that the owner has waited in its calls, for locks or for its own thread [s]."""
        return self._wait_seconds

    @property
    def counts(self) -> ExchangeCounts:
        """Counters so far."""
        return ExchangeCounts()

    async def read_from_rank(self, rank: int, out: Vector) -> None:  # noqa: ARG002 - there is one
        """Copy the present vector of any worker into `out`, without that worker's help."""
        np.copyto(out, self.values)

    async def read(self, out: Vector) -> int:
        """Copy the vector into `out`.

        Returns the number of its averages so far, by this worker and by partners.
        """
        np.copyto(out, self.values)
        return 0

    async def add(self, change: Vector) -> int:
        """Add to the vector.

        Returns the number of its averages so far, by this worker and by partners.
        """
        self.values += change
        return 0

    async def average_with(self, partner: int) -> None:
        """Replace this vector and the partner's by their average, and wait for the end."""
        raise AssertionError(f"a single worker has no partner {partner}")

    async def begin_average_with(self, partner: int) -> bool:
        """Begin an average; in memory it is done at once, between hosts it runs in the background.

        Returns:
            False: it is skipped, since the last one is under way, or a vector is not free.
        """
        raise AssertionError(f"a single worker has no partner {partner}")

    async def drain(self) -> None:
        """Wait for the end of all averages that this worker began."""

    async def close(self) -> None:
        """Free the vector; all workers together, after the last average."""


class PendingSum:
    """A sum over all workers that is under way; await it once.

    A single worker's sum is done at once.
    """

    def is_done(self) -> bool:
        """Return whether the vector is the sum."""
        return True

    def __await__(self) -> Generator[Any, Any, None]:
        return self.wait().__await__()

    async def wait(self) -> None:
        """Wait for the sum."""


class Transport:
    """One worker's connection to the other workers; this class is for a single worker."""

    rank: int = 0
    world_size: int = 1
    waited: float = 0.0
    """Time that this worker has waited for others, of all its time in calls [s]."""

    def __init__(self) -> None:
        self._counters: Counter[CounterName] = Counter()

    async def all_reduce_sum(self, vector: Vector) -> None:
        """Replace the vector by its sum over all workers, on all workers."""

    def begin_all_reduce(self, vector: Vector) -> PendingSum:  # noqa: ARG002 - it is the sum
        """Begin to replace the vector by its sum over all workers, in the background.

        All workers begin the same sums in the same order; several may be under way. The vector must
        neither change nor be read before the result is awaited, or `is_done`.
        """
        return PendingSum()

    async def broadcast(self, vector: Vector) -> None:
        """Replace the vector by that of rank 0."""

    async def barrier(self) -> None:
        """Wait for all workers."""

    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        """Send the vector to neighbours, which all do the same.

        The vector must not change before the result is awaited.

        Returns:
            The vectors of the neighbours, in their order.
        """
        if neighbours:
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
        """Make a vector that all workers share; all workers together, with equal content.

        Args:
            content: (1 + num_moments, n) or (n,): the vector, then the moments of the rules.
            shards: Number of parts, each with a lock and an owner.
        """
        return ParameterServer(Layout(content.shape[-1], shards), content, now=self.now)

    async def open_counters(self) -> None:
        """Make `count` usable where no vector is shared; all workers together."""

    async def count(self, counter: CounterName, amount: int) -> int:
        """Add to a counter of all workers, which begins at 0; returns the sum so far."""
        self._counters[counter] += amount
        return self._counters[counter]

    def now(self) -> float:
        """Return the seconds on this transport's clock."""
        return time.perf_counter()
