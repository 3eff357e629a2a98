"""Communication graphs of the workers, with the weights of their mixing matrices (Migliorini 2020, section 2.2)."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from training.base_graph import Links, base_graph
from training.errors import TopologyError

#: Begin of the names of base-(k+1) graphs, before k + 1.
_BASE: Final = "base-"


class TopologyName(StrEnum):
    """A communication graph over the workers."""

    COMPLETE = "complete"
    """Every rank is a neighbour of every other."""
    RING = "ring"
    """Neighbours are the next and the previous rank."""
    TORUS = "torus"
    """A periodic two-dimensional grid, as square as the number of workers allows."""
    HYPERCUBE = "hypercube"
    """Neighbours differ in one binary digit of the rank; the number of workers is a power of two."""
    EXPONENTIAL = "exponential"
    """Neighbours are at distances 1, 2, 4, ... in both directions of a ring."""
    BASE_2 = "base-2"
    """Base-(k+1) graph of degree 1: another partner in each step; exact average after a few steps, for any number."""
    BASE_3 = "base-3"
    """Base-(k+1) graph of degree at most 2."""
    BASE_4 = "base-4"
    """Base-(k+1) graph of degree at most 3."""
    BASE_5 = "base-5"
    """Base-(k+1) graph of degree at most 4."""


class Round(NamedTuple):
    """The graph of one step, with symmetric doubly stochastic weights."""

    neighbours: list[list[int]]
    """Neighbours of each worker in ascending order, without the worker itself."""
    weights: list[list[float]]
    """Weights of each worker: of its own model first, then of its neighbours' models; they add up to 1."""


class Topology(NamedTuple):
    """A sequence of graphs that comes round again; a static graph is a sequence of one."""

    rounds: list[Round]

    def reached(self, rank: int) -> list[int]:
        """Neighbours of a worker in any step, in ascending order."""
        return sorted({other for each in self.rounds for other in each.neighbours[rank]})


def make_topology(name: TopologyName, world_size: int) -> Topology:
    """The graph, static with Metropolis-Hastings weights, or the base-(k+1) graph with those of its paper.

    w_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours; w_ii makes the sum of a row 1. The matrix is symmetric and
    doubly stochastic on any graph (Xiao and Boyd 2004, section 4.2). On the complete graph all weights are 1/m.

    Raises:
        TopologyError: The graph does not exist for this number of workers.

    Examples:
        >>> make_topology(TopologyName.RING, 4).rounds[0].neighbours
        [[1, 3], [0, 2], [1, 3], [0, 2]]
        >>> make_topology(TopologyName.COMPLETE, 3).rounds[0].weights[0]
        [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
        >>> [each.neighbours for each in make_topology(TopologyName.BASE_2, 4).rounds]
        [[[1], [0], [3], [2]], [[2], [3], [0], [1]]]
    """
    if name.startswith(_BASE):
        degree = int(name.removeprefix(_BASE)) - 1
        return Topology([_weighted(links, world_size) for links in base_graph(world_size, degree)])
    neighbours = [sorted(_reached(name, rank, world_size) - {rank}) for rank in range(world_size)]
    degrees = np.array([len(others) for others in neighbours])
    weights = []
    for rank, others in enumerate(neighbours):
        given = (1 / (1 + np.maximum(degrees[rank], degrees[others]))).tolist() if others else []
        own = 1 / world_size if degrees[rank] == world_size - 1 else 1 - sum(given)
        weights.append([own, *given])
    return Topology([Round(neighbours, weights)])


#: The same, kept: the thousands of workers of a simulation share one graph.
shared_topology = lru_cache(maxsize=1)(make_topology)


def _weighted(links: Links, world_size: int) -> Round:
    """The graph of these links; what their weights leave of 1 is the weight of the own model."""
    given: list[dict[int, float]] = [{} for _ in range(world_size)]
    for (one, other), weight in links.items():
        given[one][other] = given[other][one] = weight
    ordered = [dict(sorted(each.items())) for each in given]
    return Round([list(each) for each in ordered], [[1 - sum(each.values()), *each.values()] for each in ordered])


def _reached(name: TopologyName, rank: int, world_size: int) -> set[int]:
    """Neighbours of a rank, possibly with the rank itself."""
    if name is TopologyName.COMPLETE:
        return set(range(world_size))
    if name is TopologyName.RING:
        return {(rank + 1) % world_size, (rank - 1) % world_size}
    if name is TopologyName.EXPONENTIAL:
        distances = [1 << power for power in range((world_size - 1).bit_length())]
        return {(rank + sign * distance) % world_size for distance in distances for sign in (1, -1)}
    if name is TopologyName.HYPERCUBE:
        if world_size & (world_size - 1):
            raise TopologyError(
                f"a hypercube needs a power of two of workers, not {world_size}; use exponential, which allows any"
            )
        return {rank ^ (1 << digit) for digit in range(world_size.bit_length() - 1)}
    return _on_torus(rank, world_size)


def _on_torus(rank: int, world_size: int) -> set[int]:
    rows = next(size for size in range(int(np.sqrt(world_size)), 0, -1) if world_size % size == 0)
    if rows == 1 and world_size > 3:
        raise TopologyError(
            f"{world_size} workers do not make a torus: the number has no two factors above 1; use ring, or "
            f"{world_size - 1} or {world_size + 1} workers"
        )
    columns = world_size // rows
    row, column = divmod(rank, columns)
    across = {row * columns + (column + step) % columns for step in (1, -1)}
    return across | {(row + step) % rows * columns + column for step in (1, -1)}
