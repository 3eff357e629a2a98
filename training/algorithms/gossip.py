"""The base of the methods of random pairs: a shared vector per worker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from hep_core.random_streams import random_stream
from training.algorithms.base import Algorithm, ComputeGradient, Counters, Worker
from training.algorithms.method import HostNetworkSettings
from training.topology import TopologyName, shared_topology
from training.transports.basics import Vector, is_finite
from training.transports.transport import SharedVector


class RandomPartners:
    """Neighbours drawn at random with equal probability, from one random stream per rank.

    With one stream for all ranks, all would choose the same partner.

    `neighbours`: ranks to draw from; none for a single worker.

    Examples:
        >>> partners = RandomPartners([1, 2, 3], seed=1, rank=0)
        >>> {partners.next() for _ in range(50)} == {1, 2, 3}
        True
    """

    def __init__(self, neighbours: Sequence[int], *, seed: int, rank: int) -> None:
        self._neighbours = list(neighbours)
        self._rng = random_stream(seed, "partners", rank)

    def next(self) -> int | None:
        """The rank to average with next; None for no average now."""
        if not self._neighbours:
            return None
        return self._neighbours[int(self._rng.integers(len(self._neighbours)))]

    def state(self) -> dict[str, Any]:
        """Position in the random stream."""
        return dict(self._rng.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a position in the random stream."""
        self._rng.bit_generator.state = state


class GossipSettings(HostNetworkSettings):
    """Settings of a method of random pairs."""

    topology: TopologyName = "complete"
    """Communication graph."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("averages_begun",)


class GossipAlgorithm(Algorithm):
    """A worker whose model is open to averages by partners at any time."""

    shared: SharedVector
    """The shared vector, which partners see; from `start` on."""
    SCRATCH: ClassVar[Sequence[str]] = ("shared", "_snapshot", "_change")

    def __init__(self, settings: GossipSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        rank = self.transport.rank
        topology = shared_topology(settings.topology, self.transport.world_size)
        self.partners = RandomPartners(topology.neighbours[rank], seed=worker.seed, rank=rank)
        self.staleness: Counter[int] = Counter()
        """Number of updates by the number of averages between the read and the change of the model."""
        self._snapshot, self._change = self.model.empty(), self.model.empty()

    @override
    async def start(self) -> None:
        """Share the model."""
        self.model.read(self._snapshot)
        self.shared = await self.transport.shared_vector(self._snapshot)

    @override
    async def current(self, out: Vector) -> None:
        await self.shared.read(out)

    @override
    async def add(self, change: Vector) -> None:
        await self.add_finite(change)

    async def add_finite(self, change: Vector) -> int | None:
        """Add to the shared vector; returns the number of its averages. None: the change is not finite, and counted."""
        if is_finite(change):
            return await self.shared.add(change)
        self.skipped += 1
        return None

    async def read(self) -> int:
        """Read the shared vector into the model, for the next step; returns the number of its averages."""
        version = await self.shared.read(self._snapshot)
        self.model.write(self._snapshot)
        return version

    async def own_step(
        self, compute_gradient: ComputeGradient, num_samples: int, *, version: int
    ) -> None:
        """Add the change of a step to the shared vector, so that averages since `read` are kept."""
        if not await self.has_gradient(compute_gradient, num_samples):
            return
        self.optimizer.step()
        self.model.read(self._change)
        self._change -= self._snapshot
        after = await self.add_finite(self._change)
        if after is not None:
            self.staleness[after - version] += 1

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

    @override
    def counters(self) -> Counters:
        counts = self.shared.counts
        return {
            **super().counters(),
            "averages_begun": counts.begun,
            "averages_received": counts.received,
            "averages_skipped": counts.skipped,
            "averages_refused": counts.refused,
            "averages_lost": counts.lost,
            "exchange_seconds": counts.exchange_seconds,
            "hidden_seconds": counts.hidden_seconds,
            "staleness": self.staleness.copy(),
        }

    @override
    async def state(self) -> dict[str, Any]:
        published = self.model.empty()
        await self.shared.read(published)
        return {"published": published, "attributes": self.attributes()}
