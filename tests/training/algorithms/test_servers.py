"""Methods with a server against plain sequences of pushes, and where one method equals another."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
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

from training.algorithms.base import Algorithm

RATE = 0.1
#: Steps of three workers that never end together.
PACES = (1.0, 1.3, 1.7)
CLUSTER = constant_step_cluster(
    1.0, slow_ranks=dict(enumerate(PACES)), latency_seconds=1e-9, bytes_per_second=1e15
)
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
Array = NDArray[np.float64]


class Replay:
    """A method as a sequence of events: who begins or ends which step, one after the other."""

    def __init__(self, problem: LinearGradients) -> None:
        self.problem = problem
        self.server = problem.initial.copy()
        self.clock = 0
        self.at = np.tile(problem.initial, (problem.workers, 1))
        self.start, self.origin = self.at.copy(), self.at.copy()
        self.start_clock = [0] * problem.workers
        self.gathered = np.zeros_like(self.at)
        self.velocity = np.zeros_like(self.at)
        self.moments = np.zeros((2, len(self.server)))
        self.scaling: Counter[int] = Counter()

    def events(self) -> Iterator[tuple[int, int, bool]]:
        """Rank, step, and whether it ends, else begins."""
        times = [
            (pace * (step + ends), not ends, rank, step)
            for rank, pace in enumerate(PACES)
            for step in range(self.problem.steps)
            for ends in (False, True)
        ]
        for _, begins, rank, step in sorted(times):
            yield rank, step, not begins

    def sgd(self, rank: int, step: int) -> None:
        """A local step."""
        self.at[rank] -= RATE * self.problem.gradient(rank, step, self.at[rank])

    def push(self, rank: int, change: Array) -> None:
        """Add to the server and continue from there."""
        self.server = self.server + change
        self.clock += 1
        self.at[rank] = self.start[rank] = self.server
        self.start_clock[rank] = self.clock

    def window(self, rank: int, step: int, *, length: int) -> Array | None:
        """A local step; the sum of the window at its end."""
        self.sgd(rank, step)
        return self.at[rank] - self.start[rank] if (step + 1) % length == 0 else None


def pushed(
    length: int, divisor: Callable[[Replay, int], float] = lambda *_: 1.0
) -> Callable[[Replay, int, int], None]:
    def push(replay: Replay, rank: int, step: int) -> None:
        change = replay.window(rank, step, length=length)
        if change is not None:
            replay.push(rank, change / divisor(replay, rank))

    return push


accumulated = pushed(3)
divided_by_staleness = pushed(2, lambda replay, rank: replay.clock - replay.start_clock[rank] + 1)


def scaled(
    square: Callable[[Array], Array], *, by_worker: bool = False
) -> Callable[[Replay, int, int], None]:
    def scale(replay: Replay, rank: int, step: int) -> None:
        change = replay.window(rank, step, length=2)
        if change is None:
            return
        seen = replay.server
        scale = 1 / (square(seen - replay.start[rank]) + 1)
        replay.scaling[round(100 * (1 - scale.mean()))] += 1
        replay.push(rank, change / 2 * scale)
        if by_worker:
            # It continues from the server without its own change.
            replay.at[rank] = replay.start[rank] = seen

    return scale


def elastic(replay: Replay, rank: int, *, alpha: float = 0.25) -> None:
    force = alpha * (replay.at[rank] - replay.server)
    replay.server = replay.server + force
    replay.gathered[rank] = force


def moved(replay: Replay, rank: int, step: int) -> None:
    replay.sgd(rank, step)
    if (step + 1) % 2 == 0:
        elastic(replay, rank)
        replay.at[rank] -= replay.gathered[rank]


def by_snapshot(delta: float) -> Callable[[Replay, int, int], None]:
    def step_of(replay: Replay, rank: int, step: int) -> None:
        ahead = replay.at[rank] + delta * replay.velocity[rank]
        gradient = replay.problem.gradient(rank, step, ahead)
        replay.velocity[rank] = delta * replay.velocity[rank] - RATE * gradient
        replay.at[rank] += replay.velocity[rank] - replay.gathered[rank]
        replay.gathered[rank] = 0

    return step_of


def momentum_of_the_server(replay: Replay, rank: int, step: int) -> None:
    replay.moments[0] = 0.5 * replay.moments[0] + replay.problem.gradient(
        rank, step, replay.at[rank]
    )
    replay.push(rank, -RATE * replay.moments[0])


def adam_of_the_server(replay: Replay, rank: int, step: int) -> None:
    gradient = replay.problem.gradient(rank, step, replay.at[rank])
    replay.moments[0] = 0.9 * replay.moments[0] + 0.1 * gradient
    replay.moments[1] = 0.999 * replay.moments[1] + 0.001 * gradient**2
    number = replay.clock + 1
    first, second = replay.moments[0] / (1 - 0.9**number), replay.moments[1] / (1 - 0.999**number)
    replay.push(rank, -RATE * first / (np.sqrt(second) + 1e-8))


SLOWMO: dict[str, Any] = {"slowmo": {"tau": 4, "beta": 0.5}}


def slow_momentum(around: Callable[[Replay, int, int], None]) -> Callable[[Replay, int, int], None]:
    """The outer steps are no steps of the server: they once counted in Adam's bias correction."""

    def step_of_both(replay: Replay, rank: int, step: int) -> None:
        around(replay, rank, step)
        if (step + 1) % 4:
            return
        not_sent = replay.at[rank] - replay.start[rank]
        present = replay.server + not_sent
        replay.velocity[rank] = 0.5 * replay.velocity[rank] + (replay.origin[rank] - present) / RATE
        replay.origin[rank] -= RATE * replay.velocity[rank]
        replay.server = replay.server + (replay.origin[rank] - present) / 3
        replay.start[rank], replay.start_clock[rank] = replay.server, replay.clock
        replay.at[rank] = replay.server + not_sent

    return step_of_both


def slow_momentum_of_a_worker(replay: Replay, rank: int, step: int) -> None:
    """The model of an elastic worker is its own; the server follows by the exchanges."""
    moved(replay, rank, step)
    if (step + 1) % 4 == 0:
        replay.velocity[rank] = (
            0.5 * replay.velocity[rank] + (replay.origin[rank] - replay.at[rank]) / RATE
        )
        replay.origin[rank] -= RATE * replay.velocity[rank]
        replay.at[rank] = replay.origin[rank]


CASES: dict[str, tuple[dict[str, Any], Callable[[Replay, int, int], None]]] = {
    "accumulated": ({"algorithm": "downpour", "local_steps": 3}, accumulated),
    "agn": ({"algorithm": "agn", "local_steps": 3}, pushed(3, lambda *_: 3.0)),
    "dynsgd": ({"algorithm": "dynsgd", "local_steps": 2}, divided_by_staleness),
    "adag, equation 4.1": (
        {"algorithm": "adag", "local_steps": 2},
        scaled(lambda way: way**2 / RATE),
    ),
    "adag, equation 4.7": (
        {"algorithm": "adag", "local_steps": 2, "gamma": 0.01},
        scaled(lambda way: way**2 / 0.01),
    ),
    "adag, Algorithm 13": (
        {"algorithm": "adag", "local_steps": 2, "gamma": 0.01, "scaling": "worker"},
        scaled(lambda way: way**2 / 0.01, by_worker=True),
    ),
    "easgd, Algorithm 9": (
        {"algorithm": "easgd", "local_steps": 2, "rho": 2.5, "gradient": "moved"},
        moved,
    ),
    "easgd, Algorithm 1": (
        {"algorithm": "easgd", "local_steps": 2, "alpha": 0.25},
        by_snapshot(0.0),
    ),
    "eamsgd": (
        {"algorithm": "eamsgd", "local_steps": 2, "alpha": 0.25, "delta": 0.6},
        by_snapshot(0.6),
    ),
    "sharded, momentum": ({"algorithm": "sharded", "momentum": 0.5}, momentum_of_the_server),
    "sharded, adam": ({"algorithm": "sharded", "optimizer": "adam"}, adam_of_the_server),
    "sharded, adam, slow momentum": (
        {"algorithm": "sharded", "optimizer": "adam"} | SLOWMO,
        slow_momentum(adam_of_the_server),
    ),
    # The outer step comes between two pushes, and with the last of a window.
    "accumulated, slow momentum": (
        {"algorithm": "downpour", "local_steps": 3} | SLOWMO,
        slow_momentum(accumulated),
    ),
    "dynsgd, slow momentum": (
        {"algorithm": "dynsgd", "local_steps": 2} | SLOWMO,
        slow_momentum(divided_by_staleness),
    ),
    "easgd, slow momentum": (
        {"algorithm": "easgd", "local_steps": 2, "rho": 2.5, "gradient": "moved"} | SLOWMO,
        slow_momentum_of_a_worker,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_pushes_one_after_the_other_follow_the_equation(case: str) -> None:
    chosen, on_end = CASES[case]
    problem = LinearGradients(workers=3, steps=12, seed=4)
    watcher = StepRecorder()
    found = problem.drive(cluster=CLUSTER, before_step=watcher, **SGD | {"shards": 1} | chosen)
    replay, at_snapshot = Replay(problem), on_end.__name__ == "step_of"
    expected = np.empty_like(found)
    for rank, step, ends in replay.events():
        if not ends:
            if at_snapshot and step % 2 == 0:
                elastic(replay, rank)
            continue
        on_end(replay, rank, step)
        own = chosen["algorithm"] in ("easgd", "eamsgd")
        expected[step, rank] = replay.at[rank] + (0 if own else replay.server - replay.start[rank])
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert abs(found[-1] - found[-1].mean(axis=0)).max() > 1e-3, "workers that agree prove little"
    if chosen["algorithm"] == "adag":
        counted = (
            algorithm.counters()["scaling_percent"] for algorithm in watcher.algorithms.values()
        )
        assert sum(counted, Counter()) == replay.scaling
        assert len(replay.scaling) > 5, "as much for each push proves little"


NOISE = LinearGradients(workers=4, steps=24, seed=5)
JITTER = CLUSTER.model_copy(update={"slow_ranks": {}, "jitter": 0.3})


def drive(problem: LinearGradients = NOISE, **chosen: Any) -> Array:
    return problem.drive(cluster=JITTER, **SGD | chosen)


@pytest.mark.parametrize("name", SERVER_METHODS)
def test_all_workers_continue_from_the_same_model_after_an_exact_average(name: str) -> None:
    """Each once had the parts of the outer step only that others had added before it."""
    models: dict[int, Array] = {}

    def look(rank: int, step: int, algorithm: Algorithm) -> None:
        if step == 12:
            models[rank] = algorithm.model.empty()
            algorithm.model.read(models[rank])

    slow = {"slowmo": {"tau": 6, "beta": 0.5, "exact_average": True}}
    # Nobody pushes before all have the result.
    problem = LinearGradients(workers=4, steps=13, seed=5)
    problem.drive(cluster=JITTER, before_step=look, **SGD | SERVER_METHODS[name] | slow)
    np.testing.assert_allclose([models[rank] for rank in range(4)], [models[0]] * 4, atol=1e-13)


def test_synchronous_easgd_moves_the_server_by_all_workers_at_once() -> None:
    alpha, server = 0.2, NOISE.initial
    results = np.empty((4, 5))
    found = drive(
        algorithm="easgd",
        synchronous=True,
        alpha=alpha,
        local_steps=1,
        gradient="snapshot",
        results=results,
    )
    at = np.tile(NOISE.initial, (4, 1))
    for step in range(NOISE.steps):
        force = alpha * (at - server)
        at, server = at - RATE * NOISE.gradients(step, at) - force, server + force.sum(axis=0)
        np.testing.assert_allclose(found[step], at, atol=1e-13)
    np.testing.assert_allclose(results, np.tile(server, (4, 1)), atol=1e-13)
    assert abs(server - at.mean(axis=0)).max() > 1e-3


def test_zealous_workers_gather_at_one_point_while_the_server_is_occupied() -> None:
    slow = CLUSTER.model_copy(update={"slow_ranks": {}, "jitter": 0.3, "latency_seconds": 0.4})
    problem, watcher = LinearGradients(workers=4, steps=24, seed=5), StepRecorder()
    compute, points = problem.gradient, [set[bytes]() for _ in range(4)]

    def gradient(rank: int, step: int, at: Array) -> Array:
        points[rank].add(at.tobytes())
        return compute(rank, step, at)

    problem.gradient = gradient  # type: ignore[method-assign]
    problem.drive(
        cluster=slow, algorithm="downpour", zealous=True, local_steps=5, before_step=watcher, **SGD
    )
    pushes = [watcher.algorithms[rank].counters()["pushes"] for rank in range(4)]
    assert sum(watcher.algorithms[rank].counters()["pushes_put_off"] for rank in range(4)) > 10
    assert 4 * 24 / 5 - 4 <= sum(pushes) < 0.8 * 4 * 24
    # A push after the last gradient gives a point at which nobody computes.
    assert all(made <= len(seen) <= made + 1 for made, seen in zip(pushes, points, strict=True))


@pytest.mark.parametrize(
    ("gradient", "exchanges"), [("moved", [4, 7, 10, 13]), ("snapshot", [0, 5, 8, 11])]
)
def test_a_window_ends_where_the_elastic_term_is_a_step_long(
    gradient: str, exchanges: list[int]
) -> None:
    """Just after an exchange at a snapshot, the pull counted what the exchange takes from the model, too."""
    # Steps of equal length. With alpha 0.3, the pull is longer after four of them; an exchange leaves 0.4 of five.
    straight, watcher, pushes = (
        LinearGradients(workers=1, steps=15, seed=5, hessian=0.0),
        StepRecorder(),
        [],
    )
    straight.pulls[:] = 1.0

    def watch(rank: int, step: int, algorithm: Algorithm) -> None:
        watcher(rank, step, algorithm)
        pushes.append(algorithm.counters()["pushes"])

    chosen = {"algorithm": "easgd", "gradient": gradient, "alpha": 0.3, "local_steps": 12}
    drive(straight, **chosen, equilibrium_stop=True, before_step=watch)
    assert np.flatnonzero(np.diff(pushes)).tolist() == exchanges


def test_overlap_computes_at_the_parameters_of_the_step_before() -> None:
    alone = LinearGradients(workers=1, steps=10, seed=5)
    found = drive(alone, algorithm="sharded", overlap="thread")
    server, model = [alone.initial, alone.initial], alone.initial
    for step in range(10):
        server.append(server[-1] - RATE * alone.gradient(0, step, model))
        model = server[-2]
    # The push of a step has only begun at its end.
    np.testing.assert_allclose(found[:, 0], server[1:-1], atol=1e-13)


def test_a_bound_on_overlap_limits_the_steps_of_one_push() -> None:
    slow = constant_step_cluster(1.0, latency_seconds=1.0)
    pushes = []
    for bound in (1, 2, None):
        records = run(
            algorithm="sharded", overlap="thread", bound=bound, shards=1, cluster=slow, epochs=4
        ).records
        pushes.append(sum(record["pushes"] for worker in records for record in worker))
    steps = 4 * 32
    assert pushes[0] == steps
    assert steps / 2 <= pushes[1] < 0.6 * steps
    assert pushes[2] <= steps / 4


def test_the_sum_that_is_sent_is_applied_to_the_answer_so_that_nothing_is_late() -> None:
    alone = LinearGradients(workers=1, steps=10, seed=5)
    found = drive(alone, algorithm="sharded", overlap="thread", applies_sum=True)
    # `found` is the server, which has the push of a step at the end of the next.
    np.testing.assert_allclose(found[1:], drive(alone, algorithm="sgd")[:-1], atol=1e-13)


def test_own_steps_during_an_exchange_are_replaced_by_the_answer() -> None:
    alone, watcher = LinearGradients(workers=2, steps=12, seed=5), StepRecorder()
    points: list[Array] = []
    compute = alone.gradient

    def gradient(rank: int, step: int, at: Array) -> Array:
        if rank == 1:
            points.append(at.copy())
        return compute(rank, step, at)

    alone.gradient = gradient  # type: ignore[method-assign]
    # An exchange of rank 1, with the one shard of rank 0, takes two steps.
    slow = constant_step_cluster(1.0, latency_seconds=0.9)
    alone.drive(
        cluster=slow,
        algorithm="sharded",
        overlap="thread",
        local_optimizer=True,
        shards=1,
        before_step=watcher,
        **SGD,
    )
    own = [
        np.allclose(after, before - RATE * compute(1, step, before), atol=1e-13)
        for step, (before, after) in enumerate(itertools.pairwise(points))
    ]
    # A step of its own leads to the next point, but where an answer came: that of each push but the last.
    answers = own.count(False)
    assert answers == watcher.algorithms[1].counters()["pushes"] - 1
    assert 0 < answers <= len(own) / 2


@pytest.mark.parametrize("bound", [0, 2])
def test_no_worker_is_further_ahead_than_the_bound(bound: int) -> None:
    problem = LinearGradients(workers=4, steps=20, seed=5)
    watcher, begun = StepRecorder(), np.zeros((4, 20))
    compute = problem.gradient

    def gradient(rank: int, step: int, at: Array) -> Array:
        begun[rank, step] = watcher.algorithms[rank].transport.now()
        return compute(rank, step, at)

    problem.gradient = gradient  # type: ignore[method-assign]
    slow = CLUSTER.model_copy(update={"slow_ranks": {1: 3.0}})
    problem.drive(
        cluster=slow, algorithm="downpour", staleness_bound=bound, before_step=watcher, **SGD
    )
    ended = begun + np.array([1.0, 3.0, 1.0, 1.0])[:, None]
    slowest = ended.max(axis=0)[: 19 - bound]
    np.testing.assert_allclose(begun[0, bound + 1 :], slowest, atol=1e-6)


def test_work_units_with_a_bound_on_staleness_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"sharding: global has no effect: .* no staleness_bound"
    ):
        settings(algorithm="downpour", staleness_bound=1, sharding="global")
    assert settings(algorithm="easgd", synchronous=True).has_static_shards


def test_workers_that_scale_count_the_staleness_of_their_windows() -> None:
    """It was 0: the clocks were compared with those that the worker sees just before its push."""
    equal = constant_step_cluster(1.0, jitter=0.02, latency_seconds=1e-9)
    means = {}
    for scaling in ("server", "worker"):
        watcher, problem = StepRecorder(), LinearGradients(workers=6, steps=200, seed=1, noise=0.0)
        problem.drive(
            cluster=equal,
            before_step=watcher,
            algorithm="adag",
            local_steps=2,
            scaling=scaling,
            **SGD,
            shards=2,
        )
        counted = sum(
            (each.counters()["staleness"] for each in watcher.algorithms.values()), Counter[int]()
        )
        means[scaling] = sum(number * times for number, times in counted.items()) / counted.total()
    # Each of the other five pushes once in a window.
    assert means["worker"] == pytest.approx(means["server"], abs=0.1)
    assert means["worker"] == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("exact", [False, True])
def test_outer_steps_of_slowmo_are_no_pushes(exact: bool) -> None:
    """They counted as pushes of staleness 0, so that the mean staleness fell from n - 1 by a fifth."""
    equal = constant_step_cluster(1.0, jitter=0.02, latency_seconds=1e-9)
    watcher, problem = StepRecorder(), LinearGradients(workers=6, steps=200, seed=1, noise=0.0)
    slow = {"tau": 4, "exact_average": exact}
    problem.drive(cluster=equal, before_step=watcher, algorithm="downpour", slowmo=slow, **SGD)
    found = [each.counters() for each in watcher.algorithms.values()]
    counted = sum((each["staleness"] for each in found), Counter[int]())
    assert counted.total() == sum(each["pushes"] for each in found) == 6 * 200
    mean = sum(number * times for number, times in counted.items()) / counted.total()
    # After an exact average all workers see the same server, so that the first pushes of a window are less stale.
    first = (0 + 1 + 2 + 3 + 4 + 5) / 6
    assert mean == pytest.approx((first + 3 * 5) / 4 if exact else 5, abs=0.05)
