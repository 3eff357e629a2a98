"""Communication graphs of the workers, with the weights of their mixing matrices (Migliorini 2020, section 2.2)."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np


class TopologyName(StrEnum):
    """A communication graph over the workers."""

    COMPLETE = "complete"
    """Every rank is a neighbour of every other."""
    RING = "ring"
    """Neighbours are the next and the previous rank."""
    EXPONENTIAL = "exponential"
    """Neighbours are at distances 1, 2, 4, ... in both directions of a ring."""


class Topology(NamedTuple):
    """A graph with symmetric doubly stochastic weights."""

    neighbours: list[list[int]]
    """Neighbours of each worker in ascending order, without the worker itself."""
    weights: list[list[float]]
    """Weights of each worker: of its own model first, then of its neighbours' models; they add up to 1."""


def make_topology(name: TopologyName, world_size: int) -> Topology:
    """The graph with Metropolis-Hastings weights.

    w_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours; w_ii makes the sum of a row 1. The matrix is symmetric and
    doubly stochastic on any graph (Xiao and Boyd 2004, section 4.2). On the complete graph all weights are 1/m.

    Examples:
        >>> make_topology(TopologyName.RING, 4).neighbours
        [[1, 3], [0, 2], [1, 3], [0, 2]]
        >>> make_topology(TopologyName.COMPLETE, 3).weights[0]
        [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
    """
    neighbours = [sorted(_reached(name, rank, world_size) - {rank}) for rank in range(world_size)]
    degrees = np.array([len(others) for others in neighbours])
    weights = []
    for rank, others in enumerate(neighbours):
        given = (1 / (1 + np.maximum(degrees[rank], degrees[others]))).tolist() if others else []
        own = 1 / world_size if degrees[rank] == world_size - 1 else 1 - sum(given)
        weights.append([own, *given])
    return Topology(neighbours, weights)


#: The same, kept: the thousands of workers of a simulation share one graph.
shared_topology = lru_cache(maxsize=1)(make_topology)


def _reached(name: TopologyName, rank: int, world_size: int) -> set[int]:
    """Neighbours of a rank, possibly with the rank itself."""
    if name is TopologyName.COMPLETE:
        return set(range(world_size))
    if name is TopologyName.RING:
        return {(rank + 1) % world_size, (rank - 1) % world_size}
    distances = [1 << power for power in range((world_size - 1).bit_length())]
    return {(rank + sign * distance) % world_size for distance in distances for sign in (1, -1)}
