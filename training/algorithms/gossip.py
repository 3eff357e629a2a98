"""The base of the methods in which random pairs of workers average; each has a shared vector."""

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
    """Draws the next partner among the neighbours of a rank, all with equal probability.

    Each rank has a random stream of its own. With one stream for all ranks, all would draw the same
    partner.

    `neighbours`: ranks to draw from; none for a single worker. `rank`: the rank that draws.

    Examples:
        >>> partners = RandomPartners([1, 2, 3], seed=1, rank=0)
        >>> {partners.next() for _ in range(50)} == {1, 2, 3}
        True
    """

    def __init__(self, neighbours: Sequence[int], *, seed: int, rank: int) -> None:
        self._neighbours = list(neighbours)
        self._rng = random_stream(seed, "partners", rank)

    def next(self) -> int | None:
        """Return the rank to average with next; None for no average now."""
        if not self._neighbours:
            return None
        index = int(self._rng.integers(len(self._neighbours)))
        return self._neighbours[index]

    def state(self) -> dict[str, Any]:
        """Return the position in the random stream."""
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
    """A worker whose model is open to averages by partners at any time.

    The model of the worker is its shared vector. For each step it reads a copy (the snapshot),
    computes the gradient there, and adds the change by the optimiser to the shared vector. So an
    average by a partner in the meantime is kept.
    """

    shared: SharedVector
    """The shared vector, which partners see; from `start` on."""
    SCRATCH: ClassVar[Sequence[str]] = ("shared", "_snapshot", "_change")
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: GossipSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        rank = self.transport.rank
        topology = shared_topology(settings.topology, self.transport.world_size)
        self.partners = RandomPartners(topology.neighbours[rank], seed=worker.seed, rank=rank)
        """Source of the ranks with which this worker begins averages."""
        self.staleness: Counter[int] = Counter()
        """Number of updates by the number of averages between the read and the change of the
        model."""
        #: The model when this worker last read it.
        self._snapshot = self.model.empty()
        #: The change of a step.
        self._change = self.model.empty()

    @override
    async def start(self) -> None:
        """Make the shared vector with the model as its content; all workers together."""
        self.model.read(self._snapshot)
        self.shared = await self.transport.shared_vector(self._snapshot)

    @override
    async def current(self, out: Vector) -> None:
        await self.shared.read(out)

    @override
    async def add(self, change: Vector) -> None:
        await self.add_finite(change)

    async def add_finite(self, change: Vector) -> int | None:
        """Add a change to the shared vector, and return how often that was averaged so far.

        A change that is not finite is only counted, and the result is None.
        """
        if is_finite(change):
            return await self.shared.add(change)
        self.num_steps_not_finite += 1
        return None

    async def read(self) -> int:
        """Copy the shared vector into the model and the snapshot, for the next step.

        Returns how often the shared vector was averaged so far, by this worker and by partners.
        """
        num_averages = await self.shared.read(self._snapshot)
        self.model.write(self._snapshot)
        return num_averages

    async def own_step(
        self, compute_gradient: ComputeGradient, num_samples: int, *, version: int
    ) -> None:
        """Take a step at the snapshot, and add its change to the shared vector.

        The staleness of the step is the number of averages since the snapshot, which the addition
        keeps. `version`: the result of `read` when it took the snapshot.
        """
        if not await self.has_gradient(compute_gradient, num_samples):
            return
        self.optimizer.step()
        # The model was the snapshot before the step.
        self.model.read(self._change)
        self._change -= self._snapshot
        num_averages = await self.add_finite(self._change)
        if num_averages is not None:
            self.staleness[num_averages - version] += 1

    @override
    async def snapshot(self, out: Vector) -> float:
        """Copy the mean of the workers' shared vectors into `out`; return their distance from it.

        The vectors are read one after the other while the workers train. Mean and sum of squares
        are updated with each (Welford 1962), so that one vector at a time is in memory. Vectors
        that are not finite do not count; without a finite one, both results are NaN.
        """
        vector = self.model.empty()
        mean = np.zeros(out.shape)
        sum_of_squares = 0.0
        num_finite = 0
        for rank in range(self.transport.world_size):
            await self.shared.read_from_rank(rank, vector)
            if not is_finite(vector):
                continue
            num_finite += 1
            difference = vector - mean
            mean += difference / num_finite
            # One factor is the distance from the old mean, the other from the new one.
            sum_of_squares += float(np.dot(difference, vector - mean))
        if not num_finite:
            out.fill(np.nan)
            return math.nan
        out[:] = mean
        return math.sqrt(sum_of_squares / num_finite)

    @override
    async def quiesce(self) -> None:
        """Wait for the averages that this worker began, then for those of all others."""
        await self.shared.drain()
        await self.transport.barrier()

    @override
    async def close(self) -> None:
        await self.shared.close()

    @override
    def counters(self) -> Counters:
        """Return the counts since the start; see `ExchangeCounts` for those of averages."""
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
        """Return the attributes, and the shared vector in place of the local model."""
        published = self.model.empty()
        await self.shared.read(published)
        return {"published": published, "attributes": self.state_dict()}
