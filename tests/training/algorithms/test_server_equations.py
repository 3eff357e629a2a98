"""Methods with a server follow their equations: plain sequences of pushes give the same models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated import LinearGradients, constant_step_cluster

RATE = 0.1
#: Steps of three workers that never end together.
STEP_SECONDS = (1.0, 1.3, 1.7)
CLUSTER = constant_step_cluster(
    1.0, slow_ranks=dict(enumerate(STEP_SECONDS)), latency_seconds=1e-9, bytes_per_second=1e15
)
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False}
ALPHA = 0.25
Array = NDArray[np.float64]
ServerUpdate = Callable[["Replay", int, Array], Array]
"""What the server adds for a change of a rank."""


class Replay:
    """A method as a plain sequence of events: the begins and ends of steps, one after the other.

    `server_update`: what the server adds for the change of a worker.
    """

    def __init__(self, problem: LinearGradients, server_update: ServerUpdate) -> None:
        self.problem = problem
        self.server_update = server_update
        self.server = problem.initial.copy()
        self.num_pushes = 0
        self.models = np.tile(problem.initial, (problem.workers, 1))
        #: The server from which each worker's window started, its clock then, and the steps since.
        self.window_start = self.models.copy()
        self.window_clock = [0] * problem.workers
        self.window_steps = [0] * problem.workers
        self.elastic = np.zeros_like(self.models)
        self.velocity = np.zeros_like(self.models)
        self.slow_origin = self.models.copy()
        self.slow_momentum = np.zeros_like(self.models)
        self.moments = np.zeros((2, len(self.server)))

    def events(self) -> Iterator[tuple[int, int, bool]]:
        """Rank and step in the order of time, and whether the step ends or begins."""
        times = []
        for rank, seconds in enumerate(STEP_SECONDS):
            for step in range(self.problem.steps):
                times.append((seconds * step, True, rank, step))
                times.append((seconds * (step + 1), False, rank, step))
        for _, begins, rank, step in sorted(times):
            yield rank, step, not begins

    def gradient(self, rank: int, step: int) -> Array:
        return self.problem.gradient(rank, step, self.models[rank])

    def sgd_step(self, rank: int, step: int) -> None:
        self.models[rank] -= RATE * self.gradient(rank, step)
        self.window_steps[rank] += 1

    def unsent(self, rank: int) -> Array:
        """The sum of the steps since the last push."""
        return self.models[rank] - self.window_start[rank]

    def staleness(self, rank: int) -> int:
        return self.num_pushes - self.window_clock[rank]

    def push(self, rank: int, update: Array) -> None:
        """Add to the server and continue from there."""
        self.server = self.server + update
        self.num_pushes += 1
        self.continue_from(rank, self.server)

    def continue_from(self, rank: int, server: Array) -> None:
        self.models[rank] = server
        self.window_start[rank] = server
        self.window_clock[rank] = self.num_pushes
        self.window_steps[rank] = 0

    def current(self, rank: int) -> Array:
        """The server as a push of the rank would leave it."""
        if not self.window_steps[rank]:
            return self.server
        return self.server + self.server_update(self, rank, self.unsent(rank))


StepEnd = Callable[[Replay, int, int], None]
"""What happens at the end of a step of a rank."""


def sum_of_window(_replay: Replay, _rank: int, change: Array) -> Array:
    return change


def mean_of_window(replay: Replay, rank: int, change: Array) -> Array:
    return change / replay.window_steps[rank]


def divided_by_staleness(replay: Replay, rank: int, change: Array) -> Array:
    return change / (replay.staleness(rank) + 1)


def shrunk_by_distance(gamma: float) -> ServerUpdate:
    def update(replay: Replay, rank: int, change: Array) -> Array:
        distance = replay.server - replay.window_start[rank]
        scale = 1 / (distance**2 / gamma + 1)
        return scale * mean_of_window(replay, rank, change)

    return update


def pushed_every(local_steps: int) -> StepEnd:
    def end_step(replay: Replay, rank: int, step: int) -> None:
        replay.sgd_step(rank, step)
        if replay.window_steps[rank] == local_steps:
            replay.push(rank, replay.server_update(replay, rank, replay.unsent(rank)))

    return end_step


def pushed_behind_the_worker(replay: Replay, rank: int, step: int) -> None:
    """ADAG by workers: the worker continues from the server without its own push (Algorithm 13)."""
    server = replay.server
    pushed_every(2)(replay, rank, step)
    if not replay.window_steps[rank]:
        replay.continue_from(rank, server)


def pull_by_elastic(replay: Replay, rank: int) -> None:
    replay.elastic[rank] = ALPHA * (replay.models[rank] - replay.server)
    replay.server = replay.server + replay.elastic[rank]


def elastic_after_step(replay: Replay, rank: int, step: int) -> None:
    replay.sgd_step(rank, step)
    if (step + 1) % 2 == 0:
        pull_by_elastic(replay, rank)
        replay.models[rank] -= replay.elastic[rank]


def elastic_at_snapshot(delta: float) -> StepEnd:
    """The step of a worker whose exchange was at the begin of the step."""

    def end_step(replay: Replay, rank: int, step: int) -> None:
        model = replay.models[rank]
        velocity = replay.velocity[rank]
        gradient = replay.problem.gradient(rank, step, model + delta * velocity)
        next_velocity = delta * velocity - RATE * gradient
        replay.velocity[rank] = next_velocity
        replay.models[rank] = model + next_velocity - replay.elastic[rank]
        replay.elastic[rank] = 0

    return end_step


def momentum_at_server(replay: Replay, rank: int, step: int) -> None:
    momentum = replay.moments[0]
    momentum *= 0.5
    momentum += replay.gradient(rank, step)
    replay.push(rank, -RATE * momentum)


def adam_at_server(replay: Replay, rank: int, step: int) -> None:
    gradient = replay.gradient(rank, step)
    first_moment, second_moment = replay.moments
    first_moment = 0.9 * first_moment + 0.1 * gradient
    second_moment = 0.999 * second_moment + 0.001 * gradient**2
    replay.moments[:] = [first_moment, second_moment]
    adam_step = replay.num_pushes + 1
    mean = first_moment / (1 - 0.9**adam_step)
    variance = second_moment / (1 - 0.999**adam_step)
    replay.push(rank, -RATE * mean / (np.sqrt(variance) + 1e-8))


SLOWMO: dict[str, Any] = {"slowmo": {"tau": 4, "beta": 0.5}}


def outer_step(replay: Replay, rank: int, current: Array) -> Array:
    """The slow momentum and x_0 after an outer step; returns the change of the model."""
    origin = replay.slow_origin[rank]
    slow_gradient = (origin - current) / RATE
    slow_momentum = 0.5 * replay.slow_momentum[rank] + slow_gradient
    next_origin = origin - RATE * slow_momentum
    replay.slow_momentum[rank] = slow_momentum
    replay.slow_origin[rank] = next_origin
    change: Array = next_origin - current
    return change


def with_slow_momentum(end_step: StepEnd) -> StepEnd:
    """An outer step after four steps.

    It is no step of the server, whose clock does not count it.
    """

    def end_both_steps(replay: Replay, rank: int, step: int) -> None:
        end_step(replay, rank, step)
        if (step + 1) % 4:
            return
        unsent = replay.unsent(rank)
        change = outer_step(replay, rank, replay.current(rank))
        replay.server = replay.server + change / replay.problem.workers
        replay.window_start[rank] = replay.server
        replay.window_clock[rank] = replay.num_pushes
        replay.models[rank] = replay.server + unsent

    return end_both_steps


def elastic_with_slow_momentum(replay: Replay, rank: int, step: int) -> None:
    """The model of an elastic worker is its own; the server follows by the exchanges."""
    elastic_after_step(replay, rank, step)
    if (step + 1) % 4 == 0:
        outer_step(replay, rank, replay.models[rank])
        replay.models[rank] = replay.slow_origin[rank]


#: Settings, what happens at the end of a step, and what the server adds for a change.
CASES: dict[str, tuple[dict[str, Any], StepEnd, ServerUpdate]] = {
    "accumulated": ({"algorithm": "downpour", "local_steps": 3}, pushed_every(3), sum_of_window),
    "agn": ({"algorithm": "agn", "local_steps": 3}, pushed_every(3), mean_of_window),
    "dynsgd": ({"algorithm": "dynsgd", "local_steps": 2}, pushed_every(2), divided_by_staleness),
    "adag, equation 4.1": (
        {"algorithm": "adag", "local_steps": 2},
        pushed_every(2),
        shrunk_by_distance(RATE),
    ),
    "adag, equation 4.7": (
        {"algorithm": "adag", "local_steps": 2, "gamma": 0.01},
        pushed_every(2),
        shrunk_by_distance(0.01),
    ),
    "adag, Algorithm 13": (
        {"algorithm": "adag", "local_steps": 2, "gamma": 0.01, "scaling": "worker"},
        pushed_behind_the_worker,
        shrunk_by_distance(0.01),
    ),
    "sharded, momentum": (
        {"algorithm": "sharded", "momentum": 0.5},
        momentum_at_server,
        sum_of_window,
    ),
    "sharded, adam": (
        {"algorithm": "sharded", "optimizer": "adam"},
        adam_at_server,
        sum_of_window,
    ),
    "sharded, adam, slow momentum": (
        {"algorithm": "sharded", "optimizer": "adam"} | SLOWMO,
        with_slow_momentum(adam_at_server),
        sum_of_window,
    ),
    # The outer step comes between two pushes, and with the last of a window.
    "accumulated, slow momentum": (
        {"algorithm": "downpour", "local_steps": 3} | SLOWMO,
        with_slow_momentum(pushed_every(3)),
        sum_of_window,
    ),
    "agn, slow momentum": (
        {"algorithm": "agn", "local_steps": 3} | SLOWMO,
        with_slow_momentum(pushed_every(3)),
        mean_of_window,
    ),
    "dynsgd, slow momentum": (
        {"algorithm": "dynsgd", "local_steps": 3} | SLOWMO,
        with_slow_momentum(pushed_every(3)),
        divided_by_staleness,
    ),
    "adag, slow momentum": (
        {"algorithm": "adag", "local_steps": 3, "gamma": 0.01} | SLOWMO,
        with_slow_momentum(pushed_every(3)),
        shrunk_by_distance(0.01),
    ),
}
ELASTIC_CASES: dict[str, tuple[dict[str, Any], StepEnd]] = {
    "easgd, Algorithm 9": (
        {"algorithm": "easgd", "rho": ALPHA / RATE, "gradient": "moved"},
        elastic_after_step,
    ),
    "easgd, Algorithm 1": ({"algorithm": "easgd", "alpha": ALPHA}, elastic_at_snapshot(0.0)),
    "eamsgd": ({"algorithm": "eamsgd", "alpha": ALPHA, "delta": 0.6}, elastic_at_snapshot(0.6)),
    "easgd, slow momentum": (
        {"algorithm": "easgd", "rho": ALPHA / RATE, "gradient": "moved"} | SLOWMO,
        elastic_with_slow_momentum,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_pushes_one_after_the_other_follow_the_equation(case: str) -> None:
    """SlowMo sees the server as a push would leave it, which adds a part of the unsent sum."""
    selected, end_step, server_update = CASES[case]
    problem = LinearGradients(workers=3, steps=12, seed=4)
    replay = Replay(problem, server_update)
    expected = np.empty((12, 3, len(problem.initial)))
    for rank, step, ends in replay.events():
        if ends:
            end_step(replay, rank, step)
            expected[step, rank] = replay.current(rank)

    trained = problem.drive(cluster=CLUSTER, **SGD | {"shards": 1} | selected)

    np.testing.assert_allclose(trained, expected, atol=1e-13)
    assert_workers_disagree(trained)


@pytest.mark.parametrize("case", ELASTIC_CASES)
def test_elastic_exchanges_one_after_the_other_follow_the_equation(case: str) -> None:
    selected, end_step = ELASTIC_CASES[case]
    problem = LinearGradients(workers=3, steps=12, seed=4)
    replay = Replay(problem, sum_of_window)
    expected = np.empty((12, 3, len(problem.initial)))
    for rank, step, ends in replay.events():
        if ends:
            end_step(replay, rank, step)
            expected[step, rank] = replay.models[rank]
        elif selected.get("gradient") != "moved" and step % 2 == 0:
            pull_by_elastic(replay, rank)

    trained = problem.drive(cluster=CLUSTER, **SGD, shards=1, local_steps=2, **selected)

    np.testing.assert_allclose(trained, expected, atol=1e-13)
    assert_workers_disagree(trained)


def assert_workers_disagree(models: Array) -> None:
    """Workers that agree prove little."""
    last_models = models[-1]
    deviations = last_models - last_models.mean(axis=0)
    assert abs(deviations).max() > 1e-3
