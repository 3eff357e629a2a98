"""What simulated workers do together: sums of all, half differences of two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from typing_extensions import override

from training.simulation.virtual_time import VirtualBackground, VirtualClock, VirtualTask
from training.transports.basics import Vector
from training.transports.transport import PendingSum, Transport

Finish = Callable[[Sequence[Vector]], tuple[float, Vector | None]]
"""The time that a collective operation takes after the last worker arrives [s], and what it makes of all vectors."""


class Collective:
    """One collective operation; it ends some time after the last worker arrives.

    Workers continue in the order of their ranks, so that the order of their arrival does not matter.
    """

    __slots__ = ("_clock", "_finish", "_missing", "_tasks", "_vectors", "complete", "kind")

    def __init__(self, kind: str, world_size: int, clock: VirtualClock, finish: Finish) -> None:
        self.kind = kind
        self._tasks: dict[int, VirtualTask] = {}
        self._vectors: dict[int, Vector] = {}
        self._missing = world_size
        self._clock = clock
        self._finish = finish
        self.complete = 0.0
        """Time at which the last worker arrived."""

    def bring(self, rank: int, vector: Vector) -> None:
        """Take the vector of a worker that arrives; the result replaces its content when the worker continues."""
        self._vectors[rank] = vector

    def arrive(self, rank: int, task: VirtualTask) -> None:
        """Let a worker wait for the end."""
        self._tasks[rank] = task
        self._missing -= 1
        if self._missing:
            return
        self.complete = self._clock.now
        seconds, result = self._finish([self._vectors[rank] for rank in sorted(self._vectors)])
        self._clock.at(self._clock.now + seconds, partial(self._resume_all, result))

    def _resume_all(self, result: Vector | None) -> None:
        for rank, task in sorted(self._tasks.items()):
            if result is not None:
                self._vectors[rank][...] = result
            task.resume()


class SimSum(PendingSum):
    """A sum in the background.

    Args:
        clock: The virtual clock.
        collective: The worker's part in it; gives the time until the last worker began it [s].
        worker: Waits for others to begin it.
    """

    def __init__(self, clock: VirtualClock, collective: Awaitable[float], worker: Transport) -> None:
        self._clock = clock
        self._worker = worker
        self._complete = clock.now
        self._background = VirtualBackground(clock, "sum in the background")
        self._background.begin(self._take_part(collective))

    @override
    def is_done(self) -> bool:
        return not self._background.is_under_way

    async def _take_part(self, collective: Awaitable[float]) -> None:
        self._complete += await collective

    @override
    async def wait(self) -> None:
        started = self._clock.now
        await self._background.drain()
        self._worker.waited += max(0.0, self._complete - started)


def added(vectors: Sequence[Vector]) -> Vector:
    """The sum of vectors, in their order."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


def half_difference(theirs: Vector, own: Vector) -> Vector:
    """Half the difference, which own gains and theirs loses in an average; rounded down for integers, to keep the sum.

    Examples:
        >>> import numpy as np
        >>> half_difference(np.array([5]), np.array([0])).tolist()
        [2]
        >>> half_difference(np.array([5.0]), np.array([0.0])).tolist()
        [2.5]
    """
    difference: Vector = theirs - own
    if difference.dtype.kind in "iu":
        difference //= 2
    else:
        difference *= 0.5
    return difference
