"""The mixing matrices of communication graphs, and their spectral gaps (Migliorini 2020, section 2.2)."""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from training.topology import Round, Topology

#: Highest number of workers for a spectral gap; beyond it the eigenvalues would take minutes.
MAX_EIGENVALUES = 2048


def matrix_of(graph: Round) -> NDArray[np.float64]:
    """W, (world_size, world_size): after one step of gossip, worker i holds sum_j W_ij x_j."""
    matrix = np.zeros((len(graph.neighbours), len(graph.neighbours)))
    for rank, (others, (own, *given)) in enumerate(zip(graph.neighbours, graph.weights, strict=True)):
        matrix[rank, rank] = own
        matrix[rank, others] = given
    return matrix


def mixing_matrix(topology: Topology) -> NDArray[np.float64]:
    """W, (world_size, world_size), the product over the sequence: after it, worker i holds sum_j W_ij x_j."""
    return reduce(lambda before, each: matrix_of(each) @ before, topology.rounds, np.eye(_world_size(topology)))


def spectral_gap(topology: Topology) -> float:
    """1 - ||W - 1/m||_2 of the mixing matrix: 1 mixes in one sequence, 0 never.

    For a static graph it is 1 - max(|lambda_2|, |lambda_m|), and the thesis' rho is (1 - gap)^2 (assumption 2.2).
    The gap is NaN above `MAX_EIGENVALUES` workers.
    """
    if _world_size(topology) > MAX_EIGENVALUES:
        return float("nan")
    return float(1 - np.linalg.norm(mixing_matrix(topology) - 1 / _world_size(topology), 2))


def _world_size(topology: Topology) -> int:
    return len(topology.rounds[0].neighbours)
