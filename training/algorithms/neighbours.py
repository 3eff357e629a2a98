"""The base of the methods in which neighbours on a graph exchange vectors in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from training.algorithms.base import Algorithm, Worker
from training.algorithms.method import MethodSettings
from training.effects import Mechanism, between_workers
from training.topology import TopologyName, shared_topology
from training.transports.basics import Vector, is_finite


class NeighbourSettings(MethodSettings):
    """Settings of a method of neighbours."""

    topology: TopologyName = TopologyName.RING
    """Communication graph; on `base-2` to `base-5`, each step has another."""

    @property
    @override
    def mechanisms(self) -> tuple[Mechanism, ...]:
        return (between_workers(f"{self.name} has no neighbours", counter="exchanges"),)


class NeighbourAlgorithm(Algorithm):
    """A worker that counts its steps, and thereby knows its neighbours in each."""

    KEPT: ClassVar[Sequence[str]] = ("_taken",)

    def __init__(self, settings: NeighbourSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.topology = shared_topology(settings.topology, self.transport.world_size)
        self._taken = 0

    def next_round(self) -> tuple[int, list[int], list[float]]:
        """Place of the next step in the sequence of graphs; the neighbours; weights of the own vector and theirs."""
        place = self._taken % len(self.topology.rounds)
        neighbours, weights = self.topology.rounds[place]
        self._taken += 1
        self.acted["exchanges"] += len(neighbours[self.transport.rank])
        return place, neighbours[self.transport.rank], weights[self.transport.rank]


def mix(weights: Sequence[float], vectors: Sequence[Vector], *, out: Vector) -> bool:
    """sum_j w_j x_j into `out`; False, and no change, if no vector is finite.

    A vector that is not finite counts with weight 0, and the other weights grow to the sum 1: so it stays with its
    worker, which takes over the mean of its neighbours.
    """
    finite = [(weight, vector) for weight, vector in zip(weights, vectors, strict=True) if is_finite(vector)]
    total = sum(weight for weight, _ in finite) if len(finite) < len(vectors) else 1.0
    if not total:
        return False
    out.fill(0)
    for weight, vector in finite:
        out += weight / total * vector
    return True
