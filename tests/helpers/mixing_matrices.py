"""The mixing matrices of communication graphs, and their spectral gaps (Migliorini 2020, section
2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training.topology import Topology


def mixing_matrix(topology: Topology) -> NDArray[np.float64]:
    """W, (world_size, world_size): after one step of gossip, worker i holds sum_j W_ij x_j."""
    world_size = len(topology.neighbours)
    matrix = np.zeros((world_size, world_size))
    for rank in range(world_size):
        own_weight, *neighbour_weights = topology.weights[rank]
        matrix[rank, rank] = own_weight
        matrix[rank, topology.neighbours[rank]] = neighbour_weights
    return matrix


def spectral_gap(topology: Topology) -> float:
    """1 - max(|lambda_2|, |lambda_m|); the thesis' rho is (1 - gap)^2 (assumption 2.2)."""
    without_mean = mixing_matrix(topology) - 1 / len(topology.neighbours)
    return float(1 - np.linalg.norm(without_mean, 2))
