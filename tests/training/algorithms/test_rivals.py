"""CHOCO-SGD, QG-DSGDm and DiLoCo by hand, and the special cases in which they are other methods."""

from __future__ import annotations

from typing import Any

import numpy as np
from mixing_matrices import mixing_matrix
from numpy.typing import NDArray
from simulated import CLUSTER, LinearGradients, run

from training.topology import make_topology

RATE = 0.1
PLAIN: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
RING = mixing_matrix(make_topology("ring", 5))
Matrix = NDArray[np.float64]


def top_2(values: Matrix) -> Matrix:
    """Each row's two elements of largest magnitude."""
    smallest = np.argsort(abs(values), axis=1)[:, :-2]
    retained = values.copy()
    np.put_along_axis(retained, smallest, 0, axis=1)
    return retained


def test_choco_sgd_is_algorithm_2() -> None:
    problem = LinearGradients(workers=5, steps=12, seed=2)
    present = expected = np.tile(problem.initial, (5, 1))
    for step, actual in enumerate(
        problem.drive(algorithm="choco-sgd", gamma=0.37, fraction=0.4, **PLAIN)
    ):
        half = present - RATE * problem.gradients(step, present)
        expected = expected + top_2(half - expected)
        present = half + 0.37 * (RING @ expected - expected)
        np.testing.assert_allclose(actual, present, atol=1e-13)


def test_compressed_gossip_keeps_the_mean_and_reaches_consensus() -> None:
    problem = LinearGradients(workers=5, steps=300, seed=1, size=20, hessian=0, noise=0)
    start = np.random.default_rng(3).normal(size=(5, 20))
    actual = problem.drive(algorithm="choco-sgd", fraction=0.2, initial=start, **PLAIN)
    np.testing.assert_allclose(
        actual.mean(axis=1), np.tile(start.mean(axis=0), (300, 1)), atol=1e-12
    )
    assert abs(actual[-1] - start.mean(axis=0)).max() < 1e-3


def test_qg_dsgdm_is_algorithm_1() -> None:
    problem = LinearGradients(workers=5, steps=12, seed=2)
    present, momentum = np.tile(problem.initial, (5, 1)), np.zeros((5, 5))
    for step, actual in enumerate(problem.drive(algorithm="qg-dsgdm", beta=0.8, **PLAIN)):
        half = present - RATE * (problem.gradients(step, present) + 0.8 * momentum)
        state_after = RING @ half
        momentum = 0.8 * momentum + 0.2 * (present - state_after) / RATE
        present = state_after
        np.testing.assert_allclose(actual, present, atol=1e-13)


def test_diloco_is_nesterov_over_windows_of_adamw() -> None:
    problem = LinearGradients(workers=3, steps=12, seed=2)
    settings = {"algorithm": "diloco", "local_steps": 4, "outer_rate": 0.6, "outer_momentum": 0.8}
    driven = problem.drive(**settings, optimizer="adamw", weight_decay=0.1, learning_rate=0.05)
    origin, velocity = problem.initial.copy(), np.zeros(5)
    present = np.tile(origin, (3, 1))
    first, second = np.zeros((3, 5)), np.zeros((3, 5))
    for step, actual in enumerate(driven):
        slope = problem.gradients(step, present)
        present = present * (1 - 0.05 * 0.1)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        corrected = (
            first / (1 - 0.9 ** (step + 1)) / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        )
        present = present - 0.05 * corrected
        if step % 4 == 3:
            outer = origin - present.mean(axis=0)
            velocity = 0.8 * velocity + outer
            origin = origin - 0.6 * (outer + 0.8 * velocity)
            present = np.tile(origin, (3, 1))
        np.testing.assert_allclose(actual, present, atol=1e-12)


def test_the_record_and_the_clock_charge_the_compressed_message() -> None:
    slow = CLUSTER.model_copy(update={"bytes_per_second": 1e5})
    settings = {"algorithm": "choco-sgd", "epochs": 1, "cluster": slow}
    complete, small = (run(**settings, fraction=chunk) for chunk in (1, 0.2))
    # 51 or 11 parameters of 8 bytes with 4 bytes of index. Each end of an epoch averages the models.
    steps = complete.records[0][0]["steps"]
    saved = complete.records[0][0]["bytes_sent"] - small.records[0][0]["bytes_sent"]
    assert saved == 2 * steps * 40 * 12
    assert complete.seconds - small.seconds > steps * 2 * 40 * 12 / 1e5 * 0.9
