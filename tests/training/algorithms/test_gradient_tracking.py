"""Gradient tracking is DSGT and momentum tracking, and finds the optimum of unequal losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mixing_matrices import mixing_matrix
from numpy.typing import NDArray
from simulated import LinearGradients, StepRecorder, run

from training.algorithms.base import Algorithm
from training.algorithms.gradient_tracking import GradientTracking
from training.algorithms.wrapper import Wrapper
from training.topology import make_topology

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
TRACKING: dict[str, Any] = {"algorithm": "gradient-tracking", **SGD}
RING = mixing_matrix(make_topology("ring", 5))
Matrix = NDArray[np.float64]


def corrections(recorder: StepRecorder) -> Matrix:
    """c of all workers, (workers, parameters)."""
    rows = []
    for rank in sorted(recorder.algorithms):
        method = recorder.algorithms[rank]
        while isinstance(method, Wrapper):
            method = method.base
        assert isinstance(method, GradientTracking)
        rows.append(method._correction)
    return np.array(rows)


@pytest.mark.parametrize("beta", [0.3, 0.9])
def test_with_momentum_it_is_momentum_tracking(beta: float) -> None:
    problem = LinearGradients(workers=5, steps=12, seed=2)
    models = np.tile(problem.initial, (5, 1))
    momentum = np.zeros((5, 5))
    correction = np.zeros((5, 5))

    trained = problem.drive(**TRACKING, beta=beta)

    for step in range(12):
        momentum = beta * momentum + problem.gradients(step, models)
        models = RING @ (models - RATE * (momentum - correction))
        correction = RING @ (correction - momentum) + momentum
        np.testing.assert_allclose(trained[step], models, atol=1e-12)


def test_without_momentum_it_is_gradient_tracking() -> None:
    problem = LinearGradients(workers=5, steps=12, seed=2)
    models = np.tile(problem.initial, (5, 1))
    gradients = problem.gradients(0, models)
    tracking = gradients

    trained = problem.drive(**TRACKING, beta=0.0)

    for step in range(11):
        models = RING @ (models - RATE * tracking)
        np.testing.assert_allclose(trained[step], models, atol=1e-12)
        next_gradients = problem.gradients(step + 1, models)
        tracking = RING @ tracking + next_gradients - gradients
        mean_gradient = next_gradients.mean(axis=0)
        np.testing.assert_allclose(tracking.mean(axis=0), mean_gradient, atol=1e-12)
        gradients = next_gradients


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_on_the_complete_graph_it_is_sgd_with_momentum_and_the_mean_gradient(beta: float) -> None:
    problem = LinearGradients(workers=4, steps=20, seed=4)

    trained = problem.drive(**TRACKING, beta=beta, topology="complete")

    expected = problem.drive(**SGD, algorithm="ar-sgd", momentum=beta)
    np.testing.assert_allclose(trained, expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("topology", ["ring", "exponential"])
def test_the_mean_model_follows_the_mean_momentum_without_some_gradients(
    topology: str, seed: int
) -> None:
    problem = LinearGradients(workers=5, steps=30, seed=seed)
    is_lost = np.random.default_rng(seed).random((5, 30)) < 0.2
    problem.pulls[is_lost] = np.nan
    recorder = StepRecorder()

    trained = problem.drive(**TRACKING, beta=0.7, topology=topology, before_step=recorder)

    # A gradient that is not finite counts as 0.
    models = np.tile(problem.initial, (5, 1))
    momentum = np.zeros((5, 5))
    for step in range(30):
        gradients = np.nan_to_num(problem.gradients(step, models))
        momentum = 0.7 * momentum + gradients
        mean_model = models.mean(axis=0) - RATE * momentum.mean(axis=0)
        models = trained[step]
        np.testing.assert_allclose(models.mean(axis=0), mean_model, atol=1e-12)
    sum_of_corrections = corrections(recorder).sum(axis=0)
    np.testing.assert_allclose(sum_of_corrections, 0, atol=1e-12)
    lost_steps = [recorder.algorithms[rank].num_steps_not_finite for rank in range(5)]
    assert lost_steps == is_lost.sum(axis=1).tolist()


def test_a_broken_model_leaves_the_sum_of_the_corrections_at_0() -> None:
    problem = LinearGradients(workers=5, steps=30, seed=1)
    recorder = StepRecorder()

    def record_and_break(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        if (rank, step) == (2, 10):
            algorithm.model.write(np.full(5, np.inf))

    trained = problem.drive(**TRACKING, beta=0.7, before_step=record_and_break)

    # The worker has the mean model of its neighbours after the same step.
    assert np.isfinite(trained).all()
    last_corrections = corrections(recorder)
    assert abs(last_corrections).min() > 1e-3
    np.testing.assert_allclose(last_corrections.sum(axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_at_a_constant_rate_it_finds_the_optimum_of_unequal_losses(beta: float) -> None:
    problem = LinearGradients(workers=5, steps=600, seed=6)
    # Each worker has one loss, always the same.
    problem.pulls[:] = problem.pulls[:, :1]
    optimum = problem.pulls[:, 0].mean(axis=0) / problem.hessian

    tracked = problem.drive(**TRACKING, beta=beta)
    untracked = problem.drive(**SGD, algorithm="d-psgd")

    distances = abs(tracked[-1] - optimum)
    distances_without_tracking = abs(untracked[-1] - optimum)
    assert distances.max() < 1e-9
    assert distances_without_tracking.max() > 0.02


@pytest.mark.parametrize("policy", ["keep", "reset"])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_slow_momentum_leaves_the_sum_of_the_corrections_at_0(beta: float, policy: str) -> None:
    problem = LinearGradients(workers=5, steps=15, seed=3)
    recorder = StepRecorder()
    after_outer_step: dict[int, Matrix] = {}

    def record(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        if step == 12:
            after_outer_step[rank] = corrections(recorder)[rank].copy()

    problem.drive(
        **TRACKING,
        beta=beta,
        slowmo={"tau": 6, "beta": 0.4},
        optimizer_state=policy,
        before_step=record,
    )

    last_corrections = corrections(recorder)
    assert abs(last_corrections).min() > 1e-3
    np.testing.assert_allclose(last_corrections.sum(axis=0), 0, atol=1e-12)
    # Only a momentum restarts, with the corrections of its size.
    corrections_after = np.array([*after_outer_step.values()])
    has_restarted = not corrections_after.any()
    restarts = policy == "reset" and beta > 0
    assert has_restarted == restarts


def test_it_sends_twice_the_bytes_of_d_psgd() -> None:
    tracked = run(**TRACKING, epochs=1).records[0][0]
    untracked = run(**SGD, algorithm="d-psgd", epochs=1).records[0][0]

    num_steps = tracked["steps"]
    # 51 parameters of 8 bytes for two neighbours.
    bytes_of_step = 2 * 51 * 8
    more_bytes = tracked["bytes_sent"] - untracked["bytes_sent"]
    assert more_bytes == num_steps * bytes_of_step
    assert tracked["exchanges"] == 2 * num_steps
    assert untracked["exchanges"] == 2 * num_steps
