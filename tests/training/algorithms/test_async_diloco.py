"""Asynchronous DiLoCo by hand, in any order of the pushes, and with workers of different speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulated import LinearGradients, StepRecorder, VectorRow, constant_step_cluster, settings

from training.algorithms.async_diloco import AsyncDiLoCo
from training.errors import IdleSettingError
from training.loop.factories import make_algorithm
from training.transports.pushes import Shard
from training.transports.transport import Transport

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
ASYNC = {"algorithm": "async-diloco"}
OUTER_STEP = {"outer_rate": 0.6, "outer_momentum": 0.8}
#: Steps of three workers that never end together.
STEP_SECONDS = (1.0, 1.3, 1.7)
CLUSTER = constant_step_cluster(
    1.0, slow_ranks=dict(enumerate(STEP_SECONDS)), latency_seconds=1e-9, bytes_per_second=1e15
)
Array = NDArray[np.float64]


@pytest.mark.parametrize("early_momentum", [0.0, 0.6, 1.0])
def test_pushes_one_after_the_other_are_delayed_nesterov(early_momentum: float) -> None:
    problem = LinearGradients(workers=3, steps=12, seed=4)
    server = problem.initial.copy()
    momentum = np.zeros(5)
    total = np.zeros(5)
    models = np.tile(server, (3, 1))
    starts = models.copy()
    activation = early_momentum / 3
    num_pushes = 0
    expected = np.empty((6, 3, 5))
    step_ends = []
    for rank, seconds in enumerate(STEP_SECONDS):
        step_ends += [(seconds * (step + 1), rank, step) for step in range(12)]
    for _, rank, step in sorted(step_ends):
        models[rank] -= RATE * problem.gradient(rank, step, models[rank])
        if step % 2 == 0:
            continue
        outer_gradient = starts[rank] - models[rank]
        total = total + outer_gradient / 3
        num_pushes += 1
        if num_pushes % 3 == 0:
            momentum = 0.8 * momentum + total
            total = np.zeros(5)
            weight = 1 - 3 * activation + activation
        else:
            weight = activation
        outer_update = weight * 0.8 * momentum + outer_gradient / 3
        server = server - 0.6 * outer_update
        models[rank] = starts[rank] = server
        expected[step // 2, rank] = server

    selected = {"local_steps": 2, "early_momentum": early_momentum, "dynamic_steps": False}
    trained = problem.drive(cluster=CLUSTER, **ASYNC, **OUTER_STEP, **SGD, **selected)

    np.testing.assert_allclose(trained[1::2], expected, rtol=0, atol=1e-12)


def test_one_worker_takes_outer_steps_with_nesterov_momentum() -> None:
    problem = LinearGradients(workers=1, steps=12, seed=2)
    server = problem.initial.copy()
    momentum = np.zeros(5)
    model = server

    trained = problem.drive(**ASYNC, **OUTER_STEP, **SGD, local_steps=3)

    for step in range(12):
        model = model - RATE * problem.gradient(0, step, model)
        if step % 3 == 2:
            outer_gradient = server - model
            momentum = 0.8 * momentum + outer_gradient
            server = server - 0.6 * (0.8 * momentum + outer_gradient)
            model = server
            np.testing.assert_allclose(trained[step, 0], model, rtol=0, atol=1e-12)


def test_equal_arrivals_in_a_round_are_the_synchronous_round() -> None:
    # Gradients that do not depend on the model, and pushes of a round before those of the next one.
    noise = LinearGradients(workers=4, steps=12, seed=3, hessian=0.0)
    cluster = constant_step_cluster(1.0, slow_ranks={1: 1.05, 2: 1.1, 3: 1.15})
    server = np.empty((4, 5))
    outer_model = np.empty((4, 5))
    selected = {"cluster": cluster, "local_steps": 3, **OUTER_STEP, **SGD}

    noise.drive(**ASYNC, **selected, dynamic_steps=False, results=server)

    noise.drive(algorithm="diloco", **selected, results=outer_model)
    np.testing.assert_allclose(server, outer_model, rtol=0, atol=1e-12)


@given(
    order=st.permutations(range(4)),
    early_momentum=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_the_order_of_a_round_does_not_matter_to_its_end(
    order: list[int], early_momentum: float, seed: int
) -> None:
    transport = Transport()
    transport.world_size = 4
    selected = settings(**ASYNC, **OUTER_STEP, early_momentum=early_momentum)
    algorithm = make_algorithm(VectorRow(np.zeros(3)), selected, transport)
    assert isinstance(algorithm, AsyncDiLoCo)
    rng = np.random.default_rng(seed)
    changes = rng.normal(size=(4, 3))
    start, old_momentum = rng.normal(size=(2, 3))

    server = start.copy()
    moments = np.array([np.zeros(3), old_momentum])
    for num_pushes, rank in enumerate(order):
        shard = Shard(0, 4 + num_pushes, slice(0, 3), server, moments)
        shard.vector += algorithm.server_update(changes[rank], shard)

    gradient = -changes.mean(axis=0)
    momentum = 0.8 * old_momentum + gradient
    activation = early_momentum / 4
    early = 3 * activation * 0.8 * old_momentum
    late = (1 - 4 * activation + activation) * 0.8 * momentum
    expected_server = start - 0.6 * (early + late + gradient)
    np.testing.assert_allclose(server, expected_server, atol=1e-12)
    np.testing.assert_allclose(moments, [np.zeros(3), momentum], atol=1e-12)


@pytest.mark.parametrize(("dynamic_steps", "steps_of_slow_worker"), [(True, 2), (False, 6)])
def test_workers_take_steps_in_proportion_to_their_speed(
    dynamic_steps: bool, steps_of_slow_worker: int
) -> None:
    problem = LinearGradients(workers=3, steps=60, seed=1, noise=0.0)
    cluster = constant_step_cluster(1.0, slow_ranks={1: 3.0}, latency_seconds=1e-9)
    recorder = StepRecorder()
    selected = {"local_steps": 6, "dynamic_steps": dynamic_steps}

    problem.drive(cluster=cluster, before_step=recorder, **ASYNC, **SGD, **selected)

    pushes = [recorder.algorithms[rank].counters()["pushes"] for rank in range(3)]
    # The first window of a worker has 6 steps, since no speed is known.
    assert pushes == [10, 1 + 54 // steps_of_slow_worker, 10]


def test_early_momentum_of_one_worker_is_refused() -> None:
    early = {**ASYNC, "early_momentum": 0.5}
    with pytest.raises(
        IdleSettingError,
        match=r"train\.algorithm\.early_momentum: 0\.5 has no effect: it needs at least 2 workers",
    ):
        settings(**early, workers=1).check_one_worker()
    settings(**early, workers=2).check_one_worker()
