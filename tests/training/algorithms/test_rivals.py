"""CHOCO-SGD, QG-DSGDm and DiLoCo by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from mixing_matrices import mixing_matrix
from numpy.typing import NDArray
from simulated import CLUSTER, LinearGradients, run

from training.topology import make_topology

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
RING = mixing_matrix(make_topology("ring", 5))
Matrix = NDArray[np.float64]


def top_2(rows: Matrix) -> Matrix:
    """The two elements of largest magnitude of each row, and 0 elsewhere."""
    smallest = np.argsort(abs(rows), axis=1)[:, :-2]
    largest = rows.copy()
    np.put_along_axis(largest, smallest, 0, axis=1)
    return largest


def test_choco_sgd_is_algorithm_2() -> None:
    problem = LinearGradients(workers=5, steps=12, seed=2)
    models = np.tile(problem.initial, (5, 1))
    public_copies = models.copy()

    trained = problem.drive(algorithm="choco-sgd", gamma=0.37, fraction=0.4, **SGD)

    for step in range(12):
        adapted = models - RATE * problem.gradients(step, models)
        public_copies = public_copies + top_2(adapted - public_copies)
        models = adapted + 0.37 * (RING @ public_copies - public_copies)
        np.testing.assert_allclose(trained[step], models, atol=1e-13)


def test_compressed_gossip_conserves_the_mean_and_reaches_consensus() -> None:
    problem = LinearGradients(workers=5, steps=300, seed=1, size=20, hessian=0, noise=0)
    start = np.random.default_rng(3).normal(size=(5, 20))

    trained = problem.drive(algorithm="choco-sgd", fraction=0.2, initial=start, **SGD)

    mean = start.mean(axis=0)
    mean_after_steps = trained.mean(axis=1)
    np.testing.assert_allclose(mean_after_steps, np.tile(mean, (300, 1)), atol=1e-12)
    assert abs(trained[-1] - mean).max() < 1e-3


def test_qg_dsgdm_is_algorithm_1() -> None:
    problem = LinearGradients(workers=5, steps=12, seed=2)
    models = np.tile(problem.initial, (5, 1))
    momentum = np.zeros((5, 5))

    trained = problem.drive(algorithm="qg-dsgdm", beta=0.8, **SGD)

    for step in range(12):
        gradients = problem.gradients(step, models)
        adapted = models - RATE * (gradients + 0.8 * momentum)
        mixed = RING @ adapted
        momentum = 0.8 * momentum + 0.2 * (models - mixed) / RATE
        models = mixed
        np.testing.assert_allclose(trained[step], models, atol=1e-13)


def test_diloco_is_nesterov_over_windows_of_adamw() -> None:
    problem = LinearGradients(workers=3, steps=12, seed=2)
    outer_model = problem.initial.copy()
    velocity = np.zeros(5)
    models = np.tile(outer_model, (3, 1))
    first = np.zeros((3, 5))
    second = np.zeros((3, 5))

    diloco = {"algorithm": "diloco", "local_steps": 4, "outer_rate": 0.6, "outer_momentum": 0.8}
    trained = problem.drive(**diloco, optimizer="adamw", weight_decay=0.1, learning_rate=0.05)

    for step in range(12):
        gradients = problem.gradients(step, models)
        first = 0.9 * first + 0.1 * gradients
        second = 0.999 * second + 0.001 * gradients**2
        corrected_first = first / (1 - 0.9 ** (step + 1))
        corrected_second = second / (1 - 0.999 ** (step + 1))
        decayed = models * (1 - 0.05 * 0.1)
        models = decayed - 0.05 * corrected_first / (np.sqrt(corrected_second) + 1e-8)
        if step % 4 == 3:
            difference = outer_model - models.mean(axis=0)
            velocity = 0.8 * velocity + difference
            outer_model = outer_model - 0.6 * (difference + 0.8 * velocity)
            models = np.tile(outer_model, (3, 1))
        np.testing.assert_allclose(trained[step], models, atol=1e-12)


def test_the_record_and_the_clock_charge_the_compressed_message() -> None:
    cluster = CLUSTER.model_copy(update={"bytes_per_second": 1e5})
    settings = {"algorithm": "choco-sgd", "epochs": 1, "cluster": cluster}

    full = run(**settings, fraction=1)
    compressed = run(**settings, fraction=0.2)

    # 51 or 11 parameters of 8 bytes, with 4 bytes of index, for two neighbours.
    full_record = full.records[0][0]
    compressed_record = compressed.records[0][0]
    expected_bytes = full_record["steps"] * 2 * 40 * 12
    saved_bytes = full_record["bytes_sent"] - compressed_record["bytes_sent"]
    saved_seconds = full.seconds - compressed.seconds
    assert saved_bytes == expected_bytes
    assert saved_seconds > 0.9 * expected_bytes / 1e5
