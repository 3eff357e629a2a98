"""Communication graphs: doubly stochastic weights, connected, with the spectral gaps and decay rates of theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mixing_matrices import matrix_of, mixing_matrix, spectral_gap
from simulated import LinearGradients

from training.errors import TopologyError
from training.topology import TopologyName, make_topology

COUNTS = {
    "complete": [1, 2, 3, 4, 7, 16],
    "ring": [1, 2, 3, 4, 7, 16],
    "torus": [1, 2, 3, 4, 6, 9, 15, 16],
    "hypercube": [1, 2, 4, 8, 16],
    "exponential": [1, 2, 3, 4, 6, 7, 16, 21],
}
GRAPHS = [(name, workers) for name, counts in COUNTS.items() for workers in counts]


@pytest.mark.parametrize(("name", "workers"), GRAPHS)
def test_weights_are_symmetric_doubly_stochastic_and_not_negative(name: str, workers: int) -> None:
    matrix = mixing_matrix(make_topology(TopologyName(name), workers))
    assert matrix.shape == (workers, workers)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-15)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix.min() >= 0
    assert np.diag(matrix).min() > 0


@pytest.mark.parametrize(("name", "workers"), GRAPHS)
def test_everybody_is_reached_from_everybody(name: str, workers: int) -> None:
    topology = make_topology(TopologyName(name), workers)
    ((neighbours, _),) = topology.rounds
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
    assert spectral_gap(make_topology(TopologyName.RING, workers)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_the_gap_of_a_hypercube_is_that_of_theory(digits: int) -> None:
    # Eigenvalues 1 - 2 k / (d + 1), for k = 0 ... d; of two workers, 1/2 and 1/2, they are 1 and 0.
    expected = 1 - max(abs(1 - 2 * k / (digits + 1)) for k in range(1, digits + 1))
    assert spectral_gap(make_topology(TopologyName.HYPERCUBE, 2**digits)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 5), (4, 4)])
def test_the_gap_of_a_torus_is_that_of_theory(rows: int, columns: int) -> None:
    waves = [
        1 / 5 + 2 / 5 * (np.cos(2 * np.pi * i / rows) + np.cos(2 * np.pi * j / columns))
        for i in range(rows)
        for j in range(columns)
        if (i, j) != (0, 0)
    ]
    gap = spectral_gap(make_topology(TopologyName.TORUS, rows * columns))
    assert gap == pytest.approx(1 - max(map(abs, waves)), abs=1e-12)


def test_the_complete_graph_mixes_in_one_step_and_so_does_one_worker() -> None:
    for workers in (1, 2, 9):
        topology = make_topology(TopologyName.COMPLETE, workers)
        assert spectral_gap(topology) == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(mixing_matrix(topology), 1 / workers, atol=1e-15)


def test_the_exponential_graph_mixes_much_faster_than_the_ring() -> None:
    gaps = [spectral_gap(make_topology(name, 64)) for name in (TopologyName.EXPONENTIAL, TopologyName.RING)]
    assert gaps[0] > 50 * gaps[1]
    assert len(make_topology(TopologyName.EXPONENTIAL, 64).reached(0)) == 11


def test_the_gap_of_very_many_workers_is_not_computed() -> None:
    assert np.isnan(spectral_gap(make_topology(TopologyName.RING, 2049)))


@pytest.mark.parametrize(
    ("name", "workers"), [("ring", 8), ("ring", 9), ("hypercube", 8), ("torus", 12), ("exponential", 12)]
)
def test_gossip_alone_keeps_the_mean_and_forgets_at_the_rate_of_the_second_eigenvalue(name: str, workers: int) -> None:
    problem = LinearGradients(workers=workers, steps=60, seed=1, size=40, hessian=0, noise=0)
    start = np.random.default_rng(2).normal(size=(workers, 40))
    found = problem.drive(algorithm="d-psgd", topology=name, initial=start, optimizer="sgd")
    mean = start.mean(axis=0)
    np.testing.assert_allclose(found.mean(axis=1), np.tile(mean, (60, 1)), atol=1e-14)
    spread = np.linalg.norm(found - mean, axis=(1, 2))
    assert (np.diff(spread)[:20] < 0).all()
    rate = (spread[25] / spread[10]) ** (1 / 15)
    second = 1 - spectral_gap(make_topology(TopologyName(name), workers))
    assert 0.9 * second <= rate <= second * (1 + 1e-9)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_a_base_graph_averages_any_number_exactly_with_few_links(degree: int) -> None:
    for workers in range(1, 65):
        topology = make_topology(TopologyName(f"base-{degree + 1}"), workers)
        np.testing.assert_allclose(mixing_matrix(topology), 1 / workers, atol=1e-14, err_msg=str(workers))
        assert spectral_gap(topology) == pytest.approx(1, abs=1e-12)
        assert len(topology.rounds) <= max(1, 2 * math.log(workers, degree + 1) + 2), "theorem 1 of the paper"
        for each in topology.rounds:
            np.testing.assert_array_equal(matrix_of(each), matrix_of(each).T)
            np.testing.assert_allclose(matrix_of(each).sum(axis=0), 1, atol=1e-14)
            assert matrix_of(each).min() >= -1e-15
            assert max(map(len, each.neighbours)) <= degree
    # By hand: 4 + 1 and 2 x 3 nodes.
    if degree == 1:
        assert [len(make_topology(TopologyName.BASE_2, workers).rounds) for workers in (5, 6)] == [5, 4]


@pytest.mark.parametrize("workers", [5, 12])
def test_gossip_on_a_base_graph_reaches_consensus_after_one_sequence_and_never_before(workers: int) -> None:
    steps = len(make_topology(TopologyName.BASE_3, workers).rounds)
    problem = LinearGradients(workers=workers, steps=steps, seed=1, hessian=0, noise=0)
    start = np.random.default_rng(2).normal(size=(workers, 5))
    found = problem.drive(algorithm="d-psgd", topology="base-3", initial=start, optimizer="sgd")
    spread = abs(found - start.mean(axis=0)).max(axis=(1, 2))
    assert spread[-1] < 1e-14
    assert (spread[:-1] > 1e-2).all()


def test_graphs_that_do_not_exist_are_refused_with_one_that_does() -> None:
    with pytest.raises(TopologyError, match=r"power of two of workers, not 6; use exponential"):
        make_topology(TopologyName.HYPERCUBE, 6)
    with pytest.raises(TopologyError, match=r"7 workers do not make a torus.*6 or 8 workers"):
        make_topology(TopologyName.TORUS, 7)
