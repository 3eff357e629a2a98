"""Communication graphs: doubly stochastic weights, connected, with the spectral gaps and decay rates of theory."""

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
    matrix = mixing_matrix(make_topology(name, workers))
    assert matrix.shape == (workers, workers)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-15)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix.min() >= 0
    assert np.diag(matrix).min() > 0


@pytest.mark.parametrize(("name", "workers"), GRAPHS)
def test_everybody_is_reached_from_everybody(name: str, workers: int) -> None:
    topology = make_topology(name, workers)
    neighbours = topology.neighbours
    assert all(rank not in others for rank, others in enumerate(neighbours))
    assert all(rank in neighbours[other] for rank, others in enumerate(neighbours) for other in others)
    reached = {0}
    while more := {other for rank in reached for other in neighbours[rank]} - reached:
        reached |= more
    assert reached == set(range(workers))
    assert spectral_gap(topology) > 1e-3


@pytest.mark.parametrize("workers", [3, 4, 5, 8, 17])
def test_the_gap_of_a_ring_is_that_of_theory(workers: int) -> None:
    # Eigenvalues 1/3 + 2/3 cos(2 pi k / m).
    expected = 1 - max(abs(1 / 3 + 2 / 3 * np.cos(2 * np.pi * k / workers)) for k in range(1, workers))
    assert spectral_gap(make_topology("ring", workers)) == pytest.approx(expected, abs=1e-12)


def test_the_complete_graph_mixes_in_one_step_and_so_does_one_worker() -> None:
    for workers in (1, 2, 9):
        topology = make_topology("complete", workers)
        assert spectral_gap(topology) == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(mixing_matrix(topology), 1 / workers, atol=1e-15)


def test_the_exponential_graph_mixes_much_faster_than_the_ring() -> None:
    gaps = [spectral_gap(make_topology(name, 64)) for name in ("exponential", "ring")]
    assert gaps[0] > 50 * gaps[1]
    assert len(make_topology("exponential", 64).neighbours[0]) == 11


def test_the_gap_of_very_many_workers_is_not_computed() -> None:
    assert np.isnan(spectral_gap(make_topology("ring", 2049)))


@pytest.mark.parametrize(("name", "workers"), [("ring", 8), ("ring", 9), ("exponential", 12)])
def test_gossip_alone_keeps_the_mean_and_forgets_at_the_rate_of_the_second_eigenvalue(name: str, workers: int) -> None:
    problem = LinearGradients(workers=workers, steps=60, seed=1, size=40, hessian=0, noise=0)
    start = np.random.default_rng(2).normal(size=(workers, 40))
    found = problem.drive(algorithm="d-psgd", topology=name, initial=start, optimizer="sgd")
    mean = start.mean(axis=0)
    np.testing.assert_allclose(found.mean(axis=1), np.tile(mean, (60, 1)), atol=1e-14)
    spread = np.linalg.norm(found - mean, axis=(1, 2))
    assert (np.diff(spread)[:20] < 0).all()
    rate = (spread[25] / spread[10]) ** (1 / 15)
    second = 1 - spectral_gap(make_topology(name, workers))
    assert 0.9 * second <= rate <= second * (1 + 1e-9)
