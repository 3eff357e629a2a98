"""Communication graphs of the workers, with the weights of their mixing matrices (Migliorini 2020, section 2.2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, TypeVar

import numpy as np
from pydantic import AfterValidator

from hep_core.plugin_functions import code_module, remember_plugin
from hep_core.plugins import name_validator
from training.errors import TrainingError

#: Neighbours of a rank, possibly with the rank itself, in a world of a size, by the name of the graph.
TOPOLOGIES: Final[dict[str, Callable[[int, int], Iterable[int]]]] = {}
G = TypeVar("G", bound=Callable[[int, int], Iterable[int]])


def topology(name: str) -> Callable[[G], G]:
    """Register a function of rank and world size, which gives the neighbours of the rank, as the graph of this name.

    Raises:
        ValueError: There is a graph of this name, or it is no Python function.
    """

    def register(neighbours: G) -> G:
        if name in TOPOLOGIES:
            raise ValueError(f"there is a topology '{name}' already")
        if neighbours.__module__ != __name__:
            # A plugin may be the first to import this module.
            remember_plugin(neighbours)
        TOPOLOGIES[name] = neighbours
        return neighbours

    return register


TopologyName = Annotated[str, AfterValidator(name_validator(TOPOLOGIES, "topology"))]


@topology("complete")
def complete(rank: int, world_size: int) -> Iterable[int]:  # noqa: ARG001 - all ranks have the same
    """Every rank is a neighbour of every other."""
    return range(world_size)


@topology("ring")
def ring(rank: int, world_size: int) -> Iterable[int]:
    """Neighbours are the next and the previous rank."""
    return {(rank + 1) % world_size, (rank - 1) % world_size}


@topology("exponential")
def exponential(rank: int, world_size: int) -> Iterable[int]:
    """Neighbours are at distances 1, 2, 4, ... in both directions of a ring."""
    distances = [1 << power for power in range((world_size - 1).bit_length())]
    return {(rank + sign * distance) % world_size for distance in distances for sign in (1, -1)}


class Topology(NamedTuple):
    """A graph with symmetric doubly stochastic weights."""

    neighbours: list[list[int]]
    """Neighbours of each worker in ascending order, without the worker itself."""
    weights: list[list[float]]
    """Weights of each worker: of its own model first, then of its neighbours' models; they add up to 1."""


def make_topology(name: str, world_size: int) -> Topology:
    """The graph with Metropolis-Hastings weights.

    w_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours; w_ii makes the sum of a row 1. The matrix is symmetric and
    doubly stochastic on any graph (Xiao and Boyd 2004, section 4.2). On the complete graph all weights are 1/m.

    Raises:
        TrainingError: A neighbour is not one the other way round.

    Examples:
        >>> make_topology("ring", 4).neighbours
        [[1, 3], [0, 2], [1, 3], [0, 2]]
        >>> make_topology("complete", 3).weights[0]
        [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
    """
    reached = [{*TOPOLOGIES[name](rank, world_size)} - {rank} for rank in range(world_size)]
    if code_module(TOPOLOGIES[name]) != __name__:
        _refuse_one_way(name, reached)
    neighbours = [sorted(others) for others in reached]
    degrees = np.array([len(others) for others in neighbours])
    weights = []
    for rank, others in enumerate(neighbours):
        given = (1 / (1 + np.maximum(degrees[rank], degrees[others]))).tolist() if others else []
        own = 1 / world_size if degrees[rank] == world_size - 1 else 1 - sum(given)
        weights.append([own, *given])
    return Topology(neighbours, weights)


def _refuse_one_way(name: str, reached: Sequence[Collection[int]]) -> None:
    for rank, other in ((rank, other) for rank, others in enumerate(reached) for other in others):
        if other not in range(len(reached)) or rank not in reached[other]:
            raise TrainingError(
                f"topology '{name}' of {len(reached)} ranks: {rank} has the neighbour {other}, but not the other way "
                f"round. The mixing matrix must be symmetric."
            )


#: The same, kept: the thousands of workers of a simulation share one graph.
shared_topology = lru_cache(maxsize=1)(make_topology)
