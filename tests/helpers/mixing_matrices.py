"""The mixing matrices of communication graphs, and their spectral gaps (Migliorini 2020, section 2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training.topology import Topology


def mixing_matrix(graph: Topology) -> NDArray[np.float64]:
    """W, (world_size, world_size): after one step of gossip, worker i holds sum_j W_ij x_j."""
    matrix = np.zeros((len(graph.neighbours), len(graph.neighbours)))
    for rank, (remaining, (own_value, *options)) in enumerate(
        zip(graph.neighbours, graph.weights, strict=True)
    ):
        matrix[rank, rank] = own_value
        matrix[rank, remaining] = options
    return matrix


def spectral_gap(topology: Topology) -> float:
    """1 - max(|lambda_2|, |lambda_m|); the thesis' rho is (1 - gap)^2 (assumption 2.2)."""
    return float(1 - np.linalg.norm(mixing_matrix(topology) - 1 / len(topology.neighbours), 2))
