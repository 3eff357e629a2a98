"""Communication graphs: doubly stochastic weights, spectral gaps and decay rates of theory."""

from __future__ import annotations

import numpy as np
import pytest
from mixing_matrices import mixing_matrix, spectral_gap
from simulated import LinearGradients

from training.topology import make_topology

COUNTS = {
    "complete": [1, 2, 3, 4, 7, 16],
    "ring": [1, 2, 3, 4, 7, 16],
    "exponential": [1, 2, 3, 4, 6, 7, 16, 21],
}
GRAPHS = [(name, workers) for name, counts in COUNTS.items() for workers in counts]


@pytest.mark.parametrize(("name", "workers"), GRAPHS)
def test_weights_are_symmetric_doubly_stochastic_and_not_negative(name: str, workers: int) -> None:
    topology = make_topology(name, workers)

    matrix = mixing_matrix(topology)
    assert matrix.shape == (workers, workers)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-15)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix.min() >= 0
    assert np.diag(matrix).min() > 0
    for rank, neighbours in enumerate(topology.neighbours):
        assert rank not in neighbours
    # Everybody is reached from everybody.
    assert spectral_gap(topology) > 1e-3


@pytest.mark.parametrize(("name", "workers"), [("ring", 8), ("ring", 9), ("exponential", 12)])
def test_gossip_alone_keeps_the_mean_and_forgets_at_the_rate_of_the_second_eigenvalue(
    name: str, workers: int
) -> None:
    problem = LinearGradients(workers=workers, steps=60, seed=1, size=40, hessian=0, noise=0)
    start = np.random.default_rng(2).normal(size=(workers, 40))
    mean = start.mean(axis=0)
    second_eigenvalue = 1 - spectral_gap(make_topology(name, workers))

    trained = problem.drive(algorithm="d-psgd", topology=name, initial=start, optimizer="sgd")

    mean_after_steps = trained.mean(axis=1)
    np.testing.assert_allclose(mean_after_steps, np.tile(mean, (60, 1)), atol=1e-14)
    spread = np.linalg.norm(trained - mean, axis=(1, 2))
    changes_of_spread = np.diff(spread)
    assert (changes_of_spread[:20] < 0).all()
    decay_rate = (spread[25] / spread[10]) ** (1 / 15)
    rounding = 1 + 1e-9
    assert 0.9 * second_eigenvalue <= decay_rate <= second_eigenvalue * rounding
