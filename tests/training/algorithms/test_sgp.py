"""SGP by hand, and what no interleaving of its messages changes.

Source: Assran et al. 2019, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from push_sum import OSGP, RATE, SGP, Matrix, peers_of, unwrapped, weights_of
from random_clusters import clusters
from simulated import LinearGradients, StepRecorder, run, settings, toy_network, toy_rows

from hep_studies.simulator.cluster import ClusterSettings
from training.algorithms.base import Algorithm
from training.algorithms.sgp_overlap import OverlapSgp
from training.errors import IdleSettingError


def push_matrix(step: int, *, workers: int, peers: int) -> Matrix:
    """P of a step: column j has the shares that worker j sends, and the one that it keeps."""
    matrix = np.eye(workers)
    for sender in range(workers):
        for receiver in peers_of(sender, step, workers=workers, peers=peers):
            matrix[receiver, sender] += 1
    return matrix / (peers + 1)


@pytest.mark.parametrize(("workers", "peers"), [(2, 1), (5, 1), (8, 1), (3, 2), (6, 2), (9, 2)])
def test_it_is_algorithm_1(workers: int, peers: int) -> None:
    problem = LinearGradients(workers=workers, steps=12, seed=2)
    biased = np.tile(problem.initial, (workers, 1))
    weights = np.ones((workers, 1))
    momentum = np.zeros_like(biased)

    trained = problem.drive(**SGP, peers=peers, momentum=0.5)

    for step in range(12):
        momentum = 0.5 * momentum + problem.gradients(step, biased / weights)
        matrix = push_matrix(step, workers=workers, peers=peers)
        biased = matrix @ (biased - RATE * momentum)
        weights = matrix @ weights
        np.testing.assert_allclose(trained[step], biased / weights, atol=1e-12)


def test_slowmo_goes_around_it_as_in_its_paper() -> None:
    """Wang et al. 2019, Algorithm 1, with its exact average of the de-biased models."""
    problem = LinearGradients(workers=4, steps=12, seed=2)
    outer_model, slow_momentum = problem.initial, np.zeros(5)
    models = np.tile(outer_model, (4, 1))

    slowmo = {"tau": 3, "alpha": 0.9, "beta": 0.6, "exact_average": True}
    trained = problem.drive(**SGP, slowmo=slowmo)

    for step in range(12):
        matrix = push_matrix(step, workers=4, peers=1)
        models = matrix @ (models - RATE * problem.gradients(step, models))
        if step % 3 == 2:
            slow_gradient = (outer_model - models.mean(axis=0)) / RATE
            slow_momentum = 0.6 * slow_momentum + slow_gradient
            outer_model = outer_model - 0.9 * RATE * slow_momentum
            models = np.tile(outer_model, (4, 1))
        np.testing.assert_allclose(trained[step], models, atol=1e-12)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_a_power_of_2_of_workers_has_the_mean_after_its_logarithm_of_steps(workers: int) -> None:
    num_steps = workers.bit_length() - 1
    problem = LinearGradients(workers=workers, steps=num_steps, seed=1, hessian=0, noise=0)
    start = np.random.default_rng(3).normal(size=(workers, 5))

    trained = problem.drive(**SGP, initial=start)

    mean = start.mean(axis=0)
    np.testing.assert_allclose(trained[-1], np.tile(mean, (workers, 1)), atol=1e-14)
    # Two workers have no earlier step.
    earlier_distances = abs(trained[:-1] - mean)
    assert earlier_distances.max(initial=1.0) > 0.1


@hypothesis_settings(max_examples=60)
@given(
    workers=st.integers(3, 8),
    peers=st.integers(1, 2),
    overlap=st.booleans(),
    seed=st.integers(0, 1000),
    cluster=clusters,
    # Outer steps that are none: alpha 1, beta 0.
    tau=st.integers(0, 4),
)
def test_the_sums_of_models_and_weights_change_by_the_gradients_alone(
    workers: int, peers: int, overlap: bool, seed: int, cluster: ClusterSettings, tau: int
) -> None:
    # Gradients that do not depend on the models.
    problem = LinearGradients(workers=workers, steps=8, seed=seed, hessian=0)
    recorder = StepRecorder()
    start = np.random.default_rng(seed).normal(size=(workers, 5))
    results = np.empty((workers, 5))
    weights = np.empty((workers, 8))
    slowmo = {"tau": tau, "beta": 0} if tau else None

    def note_weight(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        weights[rank, step] = unwrapped(algorithm)._biased[-1]

    problem.drive(
        **SGP,
        peers=peers,
        overlap=overlap,
        cluster=cluster,
        initial=start,
        before_step=note_weight,
        results=results,
        slowmo=slowmo,
    )

    assert sum(weights_of(recorder)) == pytest.approx(workers, abs=1e-12)
    changes = RATE * weights[:, :, np.newaxis] * problem.pulls
    expected = start.mean(axis=0) + changes.sum(axis=(0, 1)) / workers
    np.testing.assert_allclose(results, np.tile(expected, (workers, 1)), atol=1e-12)


@pytest.mark.parametrize("method", [SGP, OSGP], ids=["waiting", "overlap"])
def test_a_biased_model_that_is_not_finite_reaches_nobody_and_is_given_up(
    method: dict[str, Any],
) -> None:
    problem = LinearGradients(workers=4, steps=12, seed=1)

    def spoil(rank: int, step: int, algorithm: Algorithm) -> None:
        if (rank, step) == (1, 4):
            worker = unwrapped(algorithm)
            if isinstance(worker, OverlapSgp):
                worker._unshared[0] = np.inf
            else:
                worker._biased[0] = np.inf

    trained = problem.drive(**method, before_step=spoil)

    assert np.isfinite(trained).all()


def test_messages_go_one_way() -> None:
    train = toy_rows(320)
    to_one = run(**SGP, train=train, epochs=1).records[0][0]
    to_two = run(**SGP, peers=2, train=train, epochs=1).records[0][0]

    num_steps = to_one["steps"]
    num_parameters = sum(parameter.numel() for parameter in toy_network().parameters())
    # The parameters and the weight, of 8 bytes.
    message_bytes = 8 * (num_parameters + 1)
    bytes_to_second_peer = to_two["bytes_sent"] - to_one["bytes_sent"]
    assert bytes_to_second_peer == num_steps * message_bytes
    assert to_one["messages"] == num_steps
    assert to_two["messages"] == 2 * num_steps


def test_two_peers_of_two_workers_are_refused() -> None:
    two_peers = {"algorithm": "sgp", "peers": 2}
    with pytest.raises(
        IdleSettingError,
        match=r"train\.algorithm\.peers: 2 has no effect: it needs at least 3 workers, and "
        r"train\.workers is 2\. Raise that, or leave it out",
    ):
        settings(**two_peers, workers=2).check_one_worker()
    settings(**two_peers, workers=3).check_one_worker()
