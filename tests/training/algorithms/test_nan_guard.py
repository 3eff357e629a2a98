"""A gradient that is not finite stays with its worker: no other is poisoned, and the step is counted."""

from __future__ import annotations

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
from training.algorithms.stale_synchronous import StaleSynchronous
from training.readers.memory import MemoryRows

SLOWMO = {"slowmo": {"tau": 4, "beta": 0.5}}
EXACT = {"slowmo": SLOWMO["slowmo"] | {"exact_average": True}}


BAD = (np.nan, np.inf, 1e200)


@pytest.mark.parametrize(
    ("method", "slow", "bad"),
    [
        # Each kind of method meets each of the three.
        (method, slow, BAD[(index + turn) % 3])
        for index, method in enumerate(PARALLEL_METHODS)
        for turn, slow in enumerate(({}, SLOWMO))
        if not slow or method in WITH_SLOWMO
    ],
)
def test_the_other_workers_continue(method: str, slow: dict[str, Any], bad: float) -> None:
    problem = LinearGradients(workers=4, steps=15, seed=1)
    problem.pulls[2, 3:6] = bad
    watcher = StepRecorder()
    actual = problem.drive(
        **PARALLEL_METHODS[method],
        **slow,
        optimizer="sgd",
        momentum=0.5,
        cluster=UNEVEN_CLUSTER,
        before_step=watcher,
    )
    assert abs(actual).max() < 100
    assert [watcher.algorithms[rank].counters()["steps_not_finite"] for rank in range(4)] == [
        0,
        0,
        3,
        0,
    ]


def test_without_a_gradient_a_worker_still_takes_part_in_the_average() -> None:
    problem = LinearGradients(workers=2, steps=1, seed=1)
    problem.pulls[1] = np.nan
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "scale_learning_rate": False}
    gradient = problem.gradient(0, 0, problem.initial)
    # AR-SGD leaves the worker out of the mean of the gradients; LocalSGD and D-PSGD average models, of which one moved.
    for algorithm, share in (("ar-sgd", 1), ("local-sgd", 1 / 2), ("d-psgd", 1 / 2)):
        (actual,) = problem.drive(algorithm=algorithm, local_steps=1, **settings)
        np.testing.assert_allclose(
            actual.mean(axis=0), problem.initial - 0.1 * share * gradient, atol=1e-15
        )


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
        records = [worker[epoch] for worker in simulated.records]
        assert sum(record["steps_not_finite"] for record in records) == 1
        assert np.isfinite(records[0]["val_loss"])
    assert np.isnan(simulated.records[0][-1]["train_loss"]), (
        "what could not be computed is not left out silently"
    )


def poison(rank: int, step: int, algorithm: Algorithm) -> None:
    """Spoil the model of rank 2 before its fourth step, where its worker and where its partners see it."""
    if (rank, step) != (2, 3):
        return
    spoiled = algorithm.model.empty()
    algorithm.model.read(spoiled)
    spoiled[1] = np.nan
    algorithm.model.write(spoiled)
    base = algorithm.base if isinstance(algorithm, SlowMo) else algorithm
    base = base.base if isinstance(base, StaleSynchronous) else base
    if isinstance(base, GossipAlgorithm):
        base.shared.values[1] = np.nan  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "slow"),
    [
        (method, slow)
        for method in PARALLEL_METHODS
        for slow in ({}, SLOWMO, EXACT)
        if not slow or method in WITH_SLOWMO
    ],
)
def test_parameters_that_are_not_finite_reach_nobody(method: str, slow: dict[str, Any]) -> None:
    problem = LinearGradients(workers=4, steps=25, seed=1)
    actual = problem.drive(
        **PARALLEL_METHODS[method],
        **slow,
        optimizer="sgd",
        cluster=UNEVEN_CLUSTER,
        before_step=poison,
    )
    for rank in (0, 1, 3):
        assert np.abs(actual[:, rank]).max() < 100, f"rank {rank}"
    recovers = (
        "local-sgd",
        "diloco",
        "d-psgd",
        "qg-dsgdm",
        "choco-sgd",
        "mpca",
        *(() if slow else SERVER_METHODS),
    )
    if method in recovers:
        # The others, or the server, give it a model again.
        assert np.isfinite(actual[-1, 2]).all()


@pytest.mark.parametrize("method", ["downpour", "agn", "dynsgd", "adag"])
def test_exact_slow_momentum_lost_the_share_of_a_worker_whose_model_is_not_finite(
    method: str,
) -> None:
    problem = LinearGradients(workers=4, steps=4, seed=1)
    watcher = StepRecorder()

    def spoil(rank: int, step: int, algorithm: Algorithm) -> None:
        # In the last step before all meet, within a window.
        watcher(rank, step, algorithm)
        poison(rank, step, algorithm)

    slow = {"slowmo": {"tau": 4, "alpha": 0.5, "exact_average": True}}
    actual = problem.drive(
        algorithm=method, local_steps=9, optimizer="sgd", **slow, before_step=spoil
    )
    finite = [0, 1, 3]
    # They keep what they have not sent, and differ by it.
    goal = watcher.algorithms[0]._start_of_window  # type: ignore[attr-defined]
    np.testing.assert_allclose(actual[3, finite].mean(axis=0), goal, atol=1e-12)
    assert [watcher.algorithms[rank].counters()["pushes_refused"] for rank in range(4)] == [
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_exact_slow_momentum_left_a_worker_of_swarm_sgd_without_a_finite_model(
    exchange: str,
) -> None:
    problem = LinearGradients(workers=4, steps=9, seed=1)
    watcher = StepRecorder()

    def spoil(rank: int, step: int, algorithm: Algorithm) -> None:
        # The private model only, in the step before all meet: it is not published before.
        watcher(rank, step, algorithm)
        algorithm.optimizer.param_groups[0]["lr"] = float("inf") if (rank, step) == (2, 3) else 0.1

    slow = {"slowmo": {"tau": 4, "beta": 0.5, "exact_average": True}}
    settings = {
        "algorithm": "swarm-sgd",
        "exchange": exchange,
        "optimizer": "sgd",
        "cluster": UNEVEN_CLUSTER,
        **slow,
    }
    actual = problem.drive(**settings, before_step=spoil)
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual[3], np.tile(actual[3, 0], (4, 1)), atol=1e-14)
    assert [watcher.algorithms[rank].counters()["steps_not_finite"] for rank in range(4)] == [
        0,
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("method", ["downpour", "agn", "dynsgd", "adag"])
@pytest.mark.parametrize("broken", ["model", "gradient"])
def test_a_worker_continues_from_the_newest_server_after_a_window_that_is_left_out(
    method: str, broken: str
) -> None:
    problem = LinearGradients(workers=2, steps=8, seed=1, hessian=0.0)
    # Only rank 1 moves the server, in one direction; rank 0 takes longer, so that it finds it further on each time.
    problem.pulls[:] = np.array([0.0, 1.0])[:, None, None]
    if broken == "gradient":
        problem.pulls[0, 3] = np.nan
    starts: list[float] = []

    def noted(rank: int, step: int, algorithm: Algorithm) -> None:
        if rank == 0:
            vector = algorithm.model.empty()
            algorithm.model.read(vector)
            starts.append(float((vector - problem.initial).mean()))
            if (broken, step) == ("model", 3):
                vector[1] = np.nan
                algorithm.model.write(vector)

    cluster = constant_step_cluster(1e-3, slow_ranks={0: 2.5}, latency_seconds=1e-6)
    settings = {"algorithm": method, "local_steps": 1, "optimizer": "sgd", "momentum": 0.0}
    problem.drive(**settings, cluster=cluster, before_step=noted)
    # Rank 1 has ended after four of these steps.
    assert (np.diff(starts)[:3] > 0).all()
    assert starts[4] > starts[3]
