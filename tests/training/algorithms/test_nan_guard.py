"""A gradient or a model that is not finite stays with its worker, and its step is counted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated import (
    ALL_METHODS,
    PARALLEL_METHODS,
    SERVER_METHODS,
    UNEVEN_CLUSTER,
    WITH_SLOWMO,
    LinearGradients,
    StepRecorder,
    constant_step_cluster,
    models,
    run,
    toy_rows,
)

from training.algorithms.base import Algorithm
from training.algorithms.gossip import GossipAlgorithm
from training.algorithms.slowmo import SlowMo
from training.algorithms.wrapper import Wrapper
from training.readers.memory import MemoryRows

SLOWMO = {"slowmo": {"tau": 4, "beta": 0.5}}
EXACT_SLOWMO = {"slowmo": {"tau": 4, "beta": 0.5, "exact_average": True}}
WINDOW_METHODS = ["downpour", "agn", "dynsgd", "adag"]
#: Methods whose partners, or server, give a worker a model again.
RECOVERING = {
    "local-sgd",
    "diloco",
    "streaming-diloco",
    "streaming-diloco in 4 bits",
    "d-psgd",
    "qg-dsgdm",
    "choco-sgd",
    "gradient-tracking",
    "sgp",
    "sgp to two",
    "sgp beside",
    "sgp on a host",
    "mpca",
}
NOT_FINITE = (np.nan, np.inf, 1e200)


def methods_with(*wrappers: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Names of methods with each of the wrappers that can go around them."""
    methods = []
    for method, wrapper in itertools.product(PARALLEL_METHODS, wrappers):
        if not wrapper or method in WITH_SLOWMO:
            methods.append((method, wrapper))
    return methods


def counts_by_rank(recorder: StepRecorder, counter: str) -> list[int]:
    return [recorder.algorithms[rank].counters()[counter] for rank in range(4)]


def read_model(algorithm: Algorithm) -> Any:
    vector = algorithm.model.empty()
    algorithm.model.read(vector)
    return vector


def poison_model(rank: int, step: int, algorithm: Algorithm) -> None:
    """Spoil the model of rank 2 before its fourth step, for its worker and for its partners."""
    if (rank, step) != (2, 3):
        return
    vector = read_model(algorithm)
    vector[1] = np.nan
    algorithm.model.write(vector)
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.base
    if isinstance(algorithm, GossipAlgorithm):
        algorithm.shared.values[1] = np.nan


@pytest.mark.parametrize(("method", "slowmo"), methods_with({}, SLOWMO))
def test_the_other_workers_continue_after_gradients_that_are_not_finite(
    method: str, slowmo: dict[str, Any]
) -> None:
    problem = LinearGradients(workers=4, steps=15, seed=1)
    problem.pulls[2, 3:6] = np.reshape(NOT_FINITE, (3, 1))
    recorder = StepRecorder()
    settings = PARALLEL_METHODS[method] | slowmo | {"optimizer": "sgd", "momentum": 0.5}

    trained = problem.drive(**settings, cluster=UNEVEN_CLUSTER, before_step=recorder)

    assert abs(trained).max() < 100
    assert counts_by_rank(recorder, "steps_not_finite") == [0, 0, 3, 0]


@pytest.mark.parametrize(
    ("algorithm", "fraction"), [("ar-sgd", 1), ("local-sgd", 1 / 2), ("d-psgd", 1 / 2)]
)
def test_without_a_gradient_a_worker_still_takes_part_in_the_average(
    algorithm: str, fraction: float
) -> None:
    """AR-SGD leaves it out of the mean of the gradients.

    The others average models, of which one moved.
    """
    problem = LinearGradients(workers=2, steps=1, seed=1)
    problem.pulls[1] = np.nan
    gradient = problem.gradient(0, 0, problem.initial)
    sgd = {"optimizer": "sgd", "learning_rate": 0.1, "scale_learning_rate": False}

    (trained,) = problem.drive(algorithm=algorithm, local_steps=1, **sgd)

    expected = problem.initial - 0.1 * fraction * gradient
    np.testing.assert_allclose(trained.mean(axis=0), expected, atol=1e-15)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_poisoned_event_costs_one_step_of_one_worker_an_epoch(method: str) -> None:
    # 323 rows: batches differ in size, so that the simulator pads some.
    clean = toy_rows(323)
    features = clean.rows.inputs[0].clone()
    features[77] = np.nan
    poisoned: MemoryRows = replace(clean, rows=clean.rows._replace(inputs=(features,)))

    simulated = run(train=poisoned, **ALL_METHODS[method], cluster=UNEVEN_CLUSTER)

    assert np.isfinite(models(simulated)).all()
    for epoch in range(2):
        records = [history[epoch] for history in simulated.records]
        assert sum(record["steps_not_finite"] for record in records) == 1
        assert np.isfinite(records[0]["val_loss"])
    # A loss that could not be computed is not left out silently.
    assert np.isnan(simulated.records[0][-1]["train_loss"])


@pytest.mark.parametrize(("method", "slowmo"), methods_with({}, SLOWMO, EXACT_SLOWMO))
def test_parameters_that_are_not_finite_reach_nobody(method: str, slowmo: dict[str, Any]) -> None:
    problem = LinearGradients(workers=4, steps=25, seed=1)
    settings = PARALLEL_METHODS[method] | slowmo

    trained = problem.drive(
        **settings, optimizer="sgd", cluster=UNEVEN_CLUSTER, before_step=poison_model
    )

    assert np.abs(trained[:, [0, 1, 3]]).max() < 100
    if method in RECOVERING or (method in SERVER_METHODS and not slowmo):
        assert np.isfinite(trained[-1, 2]).all()


@pytest.mark.parametrize("method", WINDOW_METHODS)
def test_exact_slow_momentum_has_the_mean_for_a_worker_whose_model_is_not_finite(
    method: str,
) -> None:
    problem = LinearGradients(workers=4, steps=4, seed=1)
    recorder = StepRecorder()

    def record_and_poison(rank: int, step: int, algorithm: Algorithm) -> None:
        # In the last step before the outer step, within a window.
        recorder(rank, step, algorithm)
        poison_model(rank, step, algorithm)

    slowmo = {"slowmo": {"tau": 4, "alpha": 0.5, "exact_average": True}}
    trained = problem.drive(
        algorithm=method, local_steps=9, optimizer="sgd", **slowmo, before_step=record_and_poison
    )

    # The other workers keep what they have not sent, and differ by it.
    wrapper = recorder.algorithms[0]
    assert isinstance(wrapper, SlowMo)
    mean_of_finite = trained[3, [0, 1, 3]].mean(axis=0)
    np.testing.assert_allclose(mean_of_finite, wrapper._start_of_window, atol=1e-12)
    assert counts_by_rank(recorder, "pushes_refused") == [0, 0, 0, 0]


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_exact_slow_momentum_gives_a_worker_of_swarm_sgd_a_finite_model(exchange: str) -> None:
    problem = LinearGradients(workers=4, steps=9, seed=1)
    recorder = StepRecorder()

    def record_and_poison(rank: int, step: int, algorithm: Algorithm) -> None:
        # The private model only, in the step before the outer step: it is not published before.
        recorder(rank, step, algorithm)
        is_poisoned = (rank, step) == (2, 3)
        rate = np.inf if is_poisoned else 0.1
        algorithm.optimizer.param_groups[0]["lr"] = rate

    settings = {"algorithm": "swarm-sgd", "exchange": exchange, "optimizer": "sgd", **EXACT_SLOWMO}
    trained = problem.drive(**settings, cluster=UNEVEN_CLUSTER, before_step=record_and_poison)

    assert np.isfinite(trained).all()
    models_after_average = trained[3]
    first_model = models_after_average[0]
    np.testing.assert_allclose(models_after_average, np.tile(first_model, (4, 1)), atol=1e-14)
    assert counts_by_rank(recorder, "steps_not_finite") == [0, 0, 1, 0]


@pytest.mark.parametrize("method", WINDOW_METHODS)
@pytest.mark.parametrize("broken", ["model", "gradient"])
def test_a_worker_continues_from_the_newest_server_after_a_window_that_is_left_out(
    method: str, broken: str
) -> None:
    # Only rank 1 moves the server, in one direction. Rank 0 takes longer, so that the server is
    # further each time.
    problem = LinearGradients(workers=2, steps=8, seed=1, hessian=0.0)
    problem.pulls[0] = 0.0
    problem.pulls[1] = 1.0
    if broken == "gradient":
        problem.pulls[0, 3] = np.nan
    starts: list[float] = []

    def record_start(rank: int, step: int, algorithm: Algorithm) -> None:
        if rank == 1:
            return
        vector = read_model(algorithm)
        starts.append(float((vector - problem.initial).mean()))
        if (broken, step) == ("model", 3):
            vector[1] = np.nan
            algorithm.model.write(vector)

    cluster = constant_step_cluster(1e-3, slow_ranks={0: 2.5}, latency_seconds=1e-6)
    settings = {"algorithm": method, "local_steps": 1, "optimizer": "sgd", "momentum": 0.0}
    problem.drive(**settings, cluster=cluster, before_step=record_start)

    # Rank 1 has ended after four of these steps.
    assert (np.diff(starts)[:3] > 0).all()
    assert starts[4] > starts[3]
