"""The base of the methods of random pairs: a shared vector per worker, and the choice of partners."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from training.algorithms.base import Algorithm
from training.flat_model import VectorModel
from training.random_streams import generator_state, random_stream, set_generator_state
from training.transports.transport import AverageCounts, SharedVector, Transport, Vector, is_finite


class Partners(Protocol):
    """Chooses the ranks that a worker averages with."""

    def next(self) -> int | None:
        """The rank to average with next; None for no average now."""

    def state(self) -> dict[str, Any]:
        """Position in the random stream."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a position in the random stream."""


class RandomPartners(Partners):
    """Neighbours drawn at random with equal probability, from one random stream per rank.

    With one stream for all ranks, all would choose the same partner.

    Args:
        neighbours: Ranks to draw from; none for a single worker.
        seed: Seed of the run.
        rank: Rank of the worker.

    Examples:
        >>> partners = RandomPartners([1, 2, 3], seed=1, rank=0)
        >>> {partners.next() for _ in range(50)} == {1, 2, 3}
        True
    """

    def __init__(self, neighbours: Sequence[int], *, seed: int, rank: int) -> None:
        self._neighbours = list(neighbours)
        self._rng = random_stream(seed, "partners", rank)

    @override
    def next(self) -> int | None:
        if not self._neighbours:
            return None
        return self._neighbours[int(self._rng.integers(len(self._neighbours)))]

    @override
    def state(self) -> dict[str, Any]:
        return generator_state(self._rng)

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        set_generator_state(self._rng, state)


class GossipAlgorithm(Algorithm):
    """A worker whose model is open to averages by partners at any time.

    Args:
        model: See `Algorithm`.
        optimizer: See `Algorithm`.
        transport: See `Algorithm`.
        partners: Chooses the ranks to average with.
    """

    synchronous = False
    equal_steps = False

    def __init__(self, model: VectorModel, optimizer: Any, transport: Transport, *, partners: Partners) -> None:
        super().__init__(model, optimizer, transport)
        self.partners = partners
        self._shared: SharedVector | None = None
        self._snapshot, self._change = model.empty(), model.empty()

    @property
    def shared(self) -> SharedVector:
        """The shared vector, which partners see."""
        if self._shared is None:
            raise AssertionError("start() was not awaited")
        return self._shared

    @override
    async def start(self) -> None:
        """Share the model."""
        self.model.read(self._snapshot)
        self._shared = await self.transport.share(self._snapshot)

    @override
    async def current(self, out: Vector) -> None:
        await self.shared.read(out)

    @override
    async def published(self, out: Vector) -> None:
        await self.shared.read(out)

    @override
    async def add(self, change: Vector) -> None:
        await self.add_finite(change)

    async def add_finite(self, change: Vector) -> int | None:
        """Add to the shared vector; returns the number of its averages. None: the change is not finite, and counted."""
        if is_finite(change):
            return await self.shared.add(change)
        self.counts.skipped += 1
        return None

    @override
    async def snapshot(self, out: Vector) -> float:
        """Read one vector after the other; the mean and the distance are updated with each (Welford 1962)."""
        theirs, mean = self.model.empty(), np.zeros(out.shape)
        squares, count = 0.0, 0
        for rank in range(self.transport.world_size):
            await self.shared.read_of(rank, theirs)
            if not is_finite(theirs):
                continue
            count += 1
            difference = theirs - mean
            mean += difference / count
            squares += float(np.dot(difference, theirs - mean))
        out[:] = mean if count else np.nan
        return math.sqrt(squares / count) if count else math.nan

    @override
    async def quiesce(self) -> None:
        await self.shared.drain()
        await self.transport.barrier()

    @override
    async def close(self) -> None:
        await self.shared.close()

    @property
    @override
    def average_counts(self) -> AverageCounts:
        return self.shared.counts

    @override
    def state(self) -> dict[str, Any]:
        return {"partners": self.partners.state()}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self.partners.load_state(state["partners"])
