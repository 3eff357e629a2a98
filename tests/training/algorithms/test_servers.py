"""How workers of methods with a server push, wait, overlap and resume: windows and bounds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from simulated import (
    SERVER_METHODS,
    LinearGradients,
    StepRecorder,
    constant_step_cluster,
    run,
    settings,
)
from typing_extensions import override

from training.algorithms.base import Algorithm

RATE = 0.1
#: Steps of three workers that never end together.
CLUSTER = constant_step_cluster(
    1.0, slow_ranks={0: 1.0, 1: 1.3, 2: 1.7}, latency_seconds=1e-9, bytes_per_second=1e15
)
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
Array = NDArray[np.float64]


@pytest.mark.parametrize("scaling", ["server", "worker"])
def test_adag_counts_how_much_each_push_is_shrunk(scaling: str) -> None:
    watcher = StepRecorder()
    problem = LinearGradients(workers=3, steps=12, seed=4)
    selected = {"algorithm": "adag", "local_steps": 2, "gamma": 0.01, "scaling": scaling}

    problem.drive(cluster=CLUSTER, before_step=watcher, **SGD, shards=1, **selected)

    shrunk: Counter[int] = Counter()
    for algorithm in watcher.algorithms.values():
        shrunk += algorithm.counters()["scaling_percent"]
    assert shrunk.total() == 3 * 12 / 2
    assert len(shrunk) > 5


NOISE = LinearGradients(workers=4, steps=24, seed=5)
JITTER = CLUSTER.model_copy(update={"slow_ranks": {}, "jitter": 0.3})


class RecordedGradients(LinearGradients):
    """Gradients that also call `on_gradient` with rank, step and parameters."""

    def __init__(self, on_gradient: Callable[[int, int, Array], None], **selected: Any) -> None:
        super().__init__(seed=5, **selected)
        self._on_gradient = on_gradient

    @override
    def gradient(self, rank: int, step: int, at: Array) -> Array:
        self._on_gradient(rank, step, at)
        return super().gradient(rank, step, at)


def drive(problem: LinearGradients = NOISE, **selected: Any) -> Array:
    return problem.drive(cluster=JITTER, **SGD | selected)


@pytest.mark.parametrize("name", SERVER_METHODS)
def test_all_workers_continue_from_the_same_model_after_an_exact_average(name: str) -> None:
    models: dict[int, Array] = {}

    def read_model(rank: int, step: int, algorithm: Algorithm) -> None:
        if step == 12:
            models[rank] = algorithm.model.empty()
            algorithm.model.read(models[rank])

    slow = {"slowmo": {"tau": 6, "beta": 0.5, "exact_average": True}}
    # Nobody pushes before all have the result.
    problem = LinearGradients(workers=4, steps=13, seed=5)
    problem.drive(cluster=JITTER, before_step=read_model, **SGD | SERVER_METHODS[name] | slow)

    for rank in range(4):
        np.testing.assert_allclose(models[rank], models[0], atol=1e-13)


def test_synchronous_easgd_moves_the_server_by_all_workers_at_once() -> None:
    alpha = 0.2
    server = NOISE.initial
    models = np.tile(NOISE.initial, (4, 1))
    results = np.empty((4, 5))
    selected = {"synchronous": True, "alpha": alpha, "local_steps": 1, "gradient": "snapshot"}

    trained = drive(algorithm="easgd", results=results, **selected)

    for step in range(NOISE.steps):
        elastic = alpha * (models - server)
        models = models - RATE * NOISE.gradients(step, models) - elastic
        server = server + elastic.sum(axis=0)
        np.testing.assert_allclose(trained[step], models, atol=1e-13)
    np.testing.assert_allclose(results, np.tile(server, (4, 1)), atol=1e-13)
    assert abs(server - models.mean(axis=0)).max() > 1e-3


def test_zealous_workers_gather_at_one_point_while_the_server_is_occupied() -> None:
    points = [set[bytes]() for _ in range(4)]

    def record_point(rank: int, _step: int, point: Array) -> None:
        points[rank].add(point.tobytes())

    problem = RecordedGradients(record_point, workers=4, steps=24)
    watcher = StepRecorder()
    cluster = CLUSTER.model_copy(update={"slow_ranks": {}, "jitter": 0.3, "latency_seconds": 0.4})
    zealous = {"algorithm": "downpour", "zealous": True, "local_steps": 5}

    problem.drive(cluster=cluster, before_step=watcher, **zealous, **SGD)

    counters = [watcher.algorithms[rank].counters() for rank in range(4)]
    pushes_put_off = sum(counts["pushes_put_off"] for counts in counters)
    assert pushes_put_off > 10
    pushes = [counts["pushes"] for counts in counters]
    num_steps = 4 * 24
    # At least after every five steps, but for the last ones of each worker.
    fewest_pushes = num_steps / 5 - 4
    assert fewest_pushes <= sum(pushes) < 0.8 * num_steps
    # A push after the last gradient gives a point at which nobody computes.
    for num_pushes, points_of_rank in zip(pushes, points, strict=True):
        assert num_pushes <= len(points_of_rank) <= num_pushes + 1


@pytest.mark.parametrize(
    ("gradient", "exchanges"), [("moved", [4, 7, 10, 13]), ("snapshot", [0, 5, 8, 11])]
)
def test_a_window_ends_where_the_elastic_term_is_a_step_long(
    gradient: str, exchanges: list[int]
) -> None:
    # Steps of equal length. With alpha 0.3, the pull is longer after four of them; an exchange
    # leaves 0.4 of five.
    straight = LinearGradients(workers=1, steps=15, seed=5, hessian=0.0)
    straight.pulls[:] = 1.0
    pushes: list[int] = []

    def count_pushes(_rank: int, _step: int, algorithm: Algorithm) -> None:
        pushes.append(algorithm.counters()["pushes"])

    selected = {"algorithm": "easgd", "gradient": gradient, "alpha": 0.3, "local_steps": 12}
    drive(straight, **selected, equilibrium_stop=True, before_step=count_pushes)

    assert np.flatnonzero(np.diff(pushes)).tolist() == exchanges


def test_overlap_computes_at_the_parameters_of_the_step_before() -> None:
    problem = LinearGradients(workers=1, steps=10, seed=5)

    trained = drive(problem, algorithm="sharded", overlap="thread")

    server = [problem.initial, problem.initial]
    model = problem.initial
    for step in range(10):
        gradient = problem.gradient(0, step, model)
        server.append(server[-1] - RATE * gradient)
        model = server[-2]
    # The push of a step has only begun at its end.
    np.testing.assert_allclose(trained[:, 0], server[1:-1], atol=1e-13)


def test_a_bound_on_overlap_limits_the_steps_of_one_push() -> None:
    cluster = constant_step_cluster(1.0, latency_seconds=1.0)
    pushes: dict[int | None, int] = {}
    for bound in (1, 2, None):
        trained = run(
            algorithm="sharded", overlap="thread", bound=bound, shards=1, cluster=cluster, epochs=4
        )
        records = itertools.chain.from_iterable(trained.records)
        pushes[bound] = sum(record["pushes"] for record in records)

    steps = 4 * 32
    assert pushes[1] == steps
    assert steps / 2 <= pushes[2] < 0.6 * steps
    assert pushes[None] <= steps / 4


def test_the_sum_that_is_sent_is_applied_to_the_answer_so_that_nothing_is_late() -> None:
    problem = LinearGradients(workers=1, steps=10, seed=5)

    server = drive(problem, algorithm="sharded", overlap="thread", applies_sum=True)

    # The server has the push of a step at the end of the next step.
    models_of_sgd = drive(problem, algorithm="sgd")
    np.testing.assert_allclose(server[1:], models_of_sgd[:-1], atol=1e-13)


def test_local_steps_during_an_exchange_are_replaced_by_the_answer() -> None:
    points: list[Array] = []

    def record_rank_1(rank: int, _: int, at: Array) -> None:
        if rank == 1:
            points.append(at.copy())

    problem = RecordedGradients(record_rank_1, workers=2, steps=12)
    watcher = StepRecorder()
    selected = {"algorithm": "sharded", "overlap": "thread", "local_optimizer": True, "shards": 1}

    # An exchange of rank 1, with the one shard of rank 0, takes two steps.
    cluster = constant_step_cluster(1.0, latency_seconds=0.9)
    problem.drive(cluster=cluster, before_step=watcher, **selected, **SGD)

    # A local step leads to the next point, but where an answer came: that of each push but the
    # last.
    num_answers = 0
    for step, (point, next_point) in enumerate(itertools.pairwise(points)):
        gradient = LinearGradients.gradient(problem, 1, step, point)
        if not np.allclose(next_point, point - RATE * gradient, atol=1e-13):
            num_answers += 1
    assert num_answers == watcher.algorithms[1].counters()["pushes"] - 1
    assert 0 < num_answers <= 11 / 2


@pytest.mark.parametrize("bound", [0, 2])
def test_no_worker_is_further_ahead_than_the_bound(bound: int) -> None:
    watcher = StepRecorder()
    begin_times = np.zeros((4, 20))

    def record_time(rank: int, step: int, _: Array) -> None:
        begin_times[rank, step] = watcher.algorithms[rank].transport.now()

    problem = RecordedGradients(record_time, workers=4, steps=20)
    cluster = CLUSTER.model_copy(update={"slow_ranks": {1: 3.0}})
    problem.drive(
        cluster=cluster, algorithm="downpour", staleness_bound=bound, before_step=watcher, **SGD
    )

    end_times = begin_times + np.array([1.0, 3.0, 1.0, 1.0])[:, None]
    slowest = end_times.max(axis=0)[: 19 - bound]
    np.testing.assert_allclose(begin_times[0, bound + 1 :], slowest, atol=1e-6)


def test_work_units_with_a_bound_on_staleness_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"sharding: global has no effect: .* no staleness_bound"
    ):
        settings(algorithm="downpour", staleness_bound=1, sharding="global")
    assert settings(algorithm="easgd", synchronous=True).has_static_shards


def staleness_of_six_workers(**selected: Any) -> tuple[Counter[int], int]:
    """Histogram of the staleness, and number of pushes, of workers with nearly equal steps."""
    watcher = StepRecorder()
    problem = LinearGradients(workers=6, steps=200, seed=1, noise=0.0)
    cluster = constant_step_cluster(1.0, jitter=0.02, latency_seconds=1e-9)
    problem.drive(cluster=cluster, before_step=watcher, **SGD, **selected)
    staleness: Counter[int] = Counter()
    num_pushes = 0
    for algorithm in watcher.algorithms.values():
        counters = algorithm.counters()
        staleness += counters["staleness"]
        num_pushes += counters["pushes"]
    return staleness, num_pushes


def mean_of(histogram: Counter[int]) -> float:
    total = sum(staleness * count for staleness, count in histogram.items())
    return total / histogram.total()


@pytest.mark.parametrize("scaling", ["server", "worker"])
def test_staleness_of_a_window_counts_the_pushes_of_others_in_it(scaling: str) -> None:
    selected = {"algorithm": "adag", "local_steps": 2, "scaling": scaling, "shards": 2}

    staleness, _ = staleness_of_six_workers(**selected)

    # Each of the other five pushes once in a window.
    assert mean_of(staleness) == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("exact", [False, True])
def test_outer_steps_of_slowmo_are_no_pushes(exact: bool) -> None:
    slowmo = {"tau": 4, "exact_average": exact}

    staleness, num_pushes = staleness_of_six_workers(algorithm="downpour", slowmo=slowmo)

    assert num_pushes == 6 * 200
    assert staleness.total() == num_pushes
    # After an exact average all workers have the same server, so that the first pushes of a window
    # are less stale.
    mean_of_first_pushes = (0 + 1 + 2 + 3 + 4 + 5) / 6
    expected = (mean_of_first_pushes + 3 * 5) / 4 if exact else 5
    assert mean_of(staleness) == pytest.approx(expected, abs=0.05)
