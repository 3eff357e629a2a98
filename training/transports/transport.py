"""How workers talk: the algorithms see these interfaces and nothing of MPI or of the simulator.

Methods are coroutines so that the same algorithm runs on both: under MPI they block and never suspend (see `run_now`),
in the simulator they suspend until the virtual clock has passed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

Vector = NDArray[Any]
T = TypeVar("T")


class AverageCounts(NamedTuple):
    """What happened to one worker's shared vector so far."""

    begun: int = 0
    """Averages that this worker began and finished."""
    received: int = 0
    """Averages that partners made with it."""
    skipped: int = 0
    """Averages not begun, since the one before was still under way."""
    mixed_reads: int = 0
    """Reads of a vector that changed meanwhile (protocol `additive` only)."""
    wait_seconds: float = 0.0
    """Time spent waiting for locks."""
    exchange_seconds: float = 0.0
    """Time that the averages took, waiting included; beside the computation if they ran beside it."""


class SharedVector(Protocol):
    """A vector of one worker that its partners may average with theirs, at any time and without its help.

    Whatever the interleaving, an average adds to one side what it takes from the other: the sum over all workers
    is conserved, and no change made by `add` is lost.
    """

    @property
    def counts(self) -> AverageCounts:
        """What happened to it so far."""

    async def read(self, out: Vector) -> int:
        """Copy the vector into `out`; returns how many averages, own and partners', it has been through."""

    async def add(self, change: Vector) -> int:
        """Add to the vector; returns how many averages it has been through."""

    async def average_with(self, partner: int) -> None:
        """Replace own and partner's vector by their average, and wait for it."""

    def begin_average_with(self, partner: int) -> None:
        """The same beside the computation; skipped and counted if the one before is still under way."""

    async def drain(self) -> None:
        """Wait until no average that this worker began is under way."""

    async def close(self) -> None:
        """Give it back; all workers together, none averages any more."""


class Transport(Protocol):
    """The other workers, as one of them sees them."""

    rank: int
    world_size: int

    async def all_reduce_sum(self, vector: Vector) -> None:
        """Replace the vector by its sum over all workers, on all workers."""

    async def broadcast(self, vector: Vector) -> None:
        """Replace the vector by that of rank 0."""

    async def barrier(self) -> None:
        """Wait for all workers."""

    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        """Send the vector to neighbours, which all do the same; await the result for theirs, in the order given.

        The vector must not change before the result is there.
        """

    async def share(self, vector: Vector) -> SharedVector:
        """A shared vector with this content; all workers together."""

    async def count_samples(self, num_samples: int) -> int:
        """Add to the samples of all workers, the global clock; returns the sum so far."""

    def now(self) -> float:
        """Seconds on this transport's clock."""


class SingleTransport(Transport):
    """One worker on its own."""

    rank = 0
    world_size = 1

    def __init__(self) -> None:
        self._samples = 0

    async def all_reduce_sum(self, vector: Vector) -> None:
        """The sum over one worker is the vector itself."""

    async def broadcast(self, vector: Vector) -> None:
        """Rank 0 has it already."""

    async def barrier(self) -> None:
        """Nobody to wait for."""

    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:  # noqa: ARG002
        """There are no neighbours."""
        if neighbours:
            raise AssertionError(f"a single worker has no neighbours {neighbours}")
        return _at_once([])

    async def share(self, vector: Vector) -> SharedVector:
        """A vector that nobody else sees."""
        return _OwnVector(vector)

    @override
    async def count_samples(self, num_samples: int) -> int:
        self._samples += num_samples
        return self._samples

    def now(self) -> float:
        """Seconds on the machine's clock."""
        return time.perf_counter()


class _OwnVector(SharedVector):
    """The shared vector of a single worker."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector.copy()

    @property
    def counts(self) -> AverageCounts:
        return AverageCounts()

    async def read(self, out: Vector) -> int:
        np.copyto(out, self._vector)
        return 0

    async def add(self, change: Vector) -> int:
        self._vector += change
        return 0

    async def average_with(self, partner: int) -> None:
        raise AssertionError(f"a single worker has no partner {partner}")

    def begin_average_with(self, partner: int) -> None:
        raise AssertionError(f"a single worker has no partner {partner}")

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, as all are that talk through MPI or to nobody.

    Raises:
        AssertionError: It did suspend: it belongs into the simulator.

    Examples:
        >>> run_now(SingleTransport().count_samples(3))
        3
    """
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    work.close()
    raise AssertionError("this coroutine waits for a simulator")


async def _at_once(value: T) -> T:
    return value
