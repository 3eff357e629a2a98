"""Communication graphs of the workers, with the weights of their mixing matrices.

Source: Migliorini 2020, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, TypeVar

import numpy as np
from pydantic import AfterValidator

from hep_core.plugin_functions import code_module, remember_plugin
from hep_core.plugins import name_validator
from hep_core.registry import PluginRegistry
from training.errors import TrainingError

Neighbours = Callable[[int, int], Iterable[int]]
"""The neighbours of a rank, possibly with the rank itself, in a world of a size."""

#: The graphs by name.
TOPOLOGIES: Final = PluginRegistry[Neighbours]("topology")
G = TypeVar("G", bound=Neighbours)


def topology(name: str) -> Callable[[G], G]:
    """Return a decorator that registers a graph under a name for the key `topology` of a config.

    The decorated function takes a rank and the number of ranks, and gives the neighbours of the
    rank.

    Raises:
        ValueError: There is a graph of this name, or the function is no Python function.
    """

    def register(neighbours: G) -> G:
        TOPOLOGIES.register(name, neighbours)
        if neighbours.__module__ != __name__:
            # A plugin may be the first to import this module.
            remember_plugin(neighbours)
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
    """Neighbours are at distances 1, 2, 4, ... in both directions of a ring.

    The distances are the powers of 2 below the world size.
    """
    num_distances = (world_size - 1).bit_length()
    for power in range(num_distances):
        yield (rank + 2**power) % world_size
        yield (rank - 2**power) % world_size


def exponential_distances(step: int, world_size: int, peers: int) -> list[int]:
    """Return how many ranks ahead the peers of a step, counted from 0, are on a ring of all ranks.

    The distances are the powers of 2 below the world size, in turn; with two peers, two of them at
    a time. A world of two ranks has one distance, a single rank none.

    Examples:
        >>> [exponential_distances(step, world_size=8, peers=1) for step in range(4)]
        [[1], [2], [4], [1]]
        >>> [exponential_distances(step, world_size=8, peers=2) for step in range(3)]
        [[1, 2], [4, 1], [2, 4]]
    """
    num_distances = (world_size - 1).bit_length()
    num_peers = min(peers, num_distances)
    first = step * num_peers
    powers = [index % num_distances for index in range(first, first + num_peers)]
    return [2**power for power in powers]


class Topology(NamedTuple):
    """A graph of workers with the weights by which each averages its neighbours' models.

    The weights form a symmetric matrix whose rows and columns add up to 1 (doubly stochastic), so
    an average by all workers keeps the mean of their models.
    """

    neighbours: list[list[int]]
    """Neighbours of each worker in ascending order, without the worker itself."""
    weights: list[list[float]]
    """Weights of each worker: of its own model first, then of its neighbours' models; they add up
    to 1."""


def make_topology(name: str, world_size: int) -> Topology:
    """Make the graph of this name for a number of ranks, with Metropolis-Hastings weights.

    w_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours i and j, where a degree is a number of
    neighbours; w_ii makes the sum of a row 1. The matrix is symmetric and doubly stochastic on any
    graph (Xiao and Boyd 2004, section 4.2). On the complete graph all weights are 1 / world_size.

    Raises:
        TrainingError: A rank is a neighbour of another one, which is no neighbour of the rank.

    Examples:
        >>> make_topology("ring", 4).neighbours
        [[1, 3], [0, 2], [1, 3], [0, 2]]
        >>> make_topology("complete", 3).weights[0]
        [0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
    """
    neighbours_of_rank = TOPOLOGIES[name]
    # A graph may name a rank several times, and the rank itself.
    neighbours = []
    for rank in range(world_size):
        distinct_ranks = {*neighbours_of_rank(rank, world_size)} - {rank}
        neighbours.append(sorted(distinct_ranks))
    # The graphs of this module are symmetric; only those of plugins need the check.
    if code_module(neighbours_of_rank) != __name__:
        _require_symmetry(name, neighbours)

    degrees = np.array([len(ranks) for ranks in neighbours])
    weights = []
    for rank, ranks in enumerate(neighbours):
        largest_degrees = np.maximum(degrees[rank], degrees[ranks]) if ranks else np.empty(0)
        neighbour_weights = (1 / (1 + largest_degrees)).tolist()
        # The exact 1 / world_size has no rounding of a difference.
        is_connected_to_all = degrees[rank] == world_size - 1
        own_weight = 1 / world_size if is_connected_to_all else 1 - sum(neighbour_weights)
        weights.append([own_weight, *neighbour_weights])
    return Topology(neighbours, weights)


def _require_symmetry(name: str, neighbours: Sequence[Collection[int]]) -> None:
    """Raise TrainingError unless every neighbour is a rank that has the rank as neighbour too.

    `neighbours`: the neighbours of each rank.
    """
    world_size = len(neighbours)
    for rank, ranks in enumerate(neighbours):
        for neighbour in ranks:
            if neighbour not in range(world_size) or rank not in neighbours[neighbour]:
                raise TrainingError(
                    f"topology '{name}' of {world_size} ranks: {rank} has the neighbour "
                    f"{neighbour}, but not the other way round. The mixing matrix must be "
                    f"symmetric."
                )


#: A cached graph: the thousands of workers of a simulation share it.
shared_topology = lru_cache(maxsize=1)(make_topology)
