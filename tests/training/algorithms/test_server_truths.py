"""What is known about methods with a server: staleness, where they converge and where not, what limits their rate.

On a quadratic with the Hessian h, n workers that push in turn have the constant delay n - 1. Then DOWNPOUR converges
for rate * h < 2 sin(pi / (4 n - 2)), which is 0.165 for 10 workers and 0.081 for 20; one worker converges below 2.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from simulated import LinearGradients, Watcher, run, samples_per_second, sleeping, toy_rows

from training.simulation.cluster import ClusterSettings

RATE = 0.12
TURNS = sleeping(1.0, jitter=0.02, latency_seconds=1e-9)


def staleness(workers: int, cluster: ClusterSettings) -> Counter[int]:
    watcher = Watcher()
    problem = LinearGradients(workers=workers, steps=600, seed=1, noise=0.0)
    problem.drive(cluster=cluster, algorithm="downpour", optimizer="sgd", learning_rate=1e-3, before_step=watcher)
    return sum((watcher.algorithms[rank].counters()["staleness"] for rank in range(workers)), Counter())


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.5])
def test_a_push_is_as_stale_as_there_are_other_workers(jitter: float) -> None:
    found = staleness(6, TURNS.model_copy(update={"jitter": jitter}))
    assert sum(times * number for times, number in found.items()) / found.total() == pytest.approx(5, rel=0.02)


def distances(workers: int, *, steps: int = 80, **chosen: Any) -> np.ndarray[Any, Any]:
    """Distance of the server from the minimum after each step, as a part of the first, over all workers."""
    problem = LinearGradients(workers=workers, steps=steps, seed=1, hessian=1.0, noise=0.0)
    defaults = {"optimizer": "sgd", "learning_rate": RATE, "scale_learning_rate": False, "cluster": TURNS}
    found = problem.drive(**defaults | chosen)
    return np.linalg.norm(found, axis=2).max(axis=1) / np.linalg.norm(problem.initial)


@pytest.mark.parametrize(
    ("workers", "chosen"),
    [
        (10, {"algorithm": "downpour"}),
        (20, {"algorithm": "dynsgd"}),
        (10, {"algorithm": "agn", "local_steps": 10}),
        (20, {"algorithm": "agn", "local_steps": 10}),
        (20, {"algorithm": "easgd", "local_steps": 10}),
    ],
    ids=str,
)
def test_it_converges(workers: int, chosen: dict[str, Any]) -> None:
    assert distances(workers, steps=240, **chosen)[-1] < 0.2


@pytest.mark.parametrize(
    ("workers", "chosen"),
    [
        (20, {"algorithm": "downpour"}),
        (10, {"algorithm": "downpour", "local_steps": 10}),
    ],
    ids=str,
)
def test_it_diverges(workers: int, chosen: dict[str, Any]) -> None:
    assert distances(workers, **chosen)[-1] > 10


def test_adag_removes_the_divergence_of_agn_with_many_workers_and_short_windows() -> None:
    plain, scaled = (
        distances(30, steps=40, learning_rate=0.09, local_steps=2, **chosen)
        for chosen in ({"algorithm": "agn"}, {"algorithm": "adag", "gamma": 1e-4})
    )
    assert plain.max() > 3
    assert scaled.max() < 1.1
    assert scaled[-1] < 0.5


def test_the_server_and_not_the_computation_limits_short_windows() -> None:
    latency, step = 1e-3, 1e-3
    far = sleeping(step, latency_seconds=latency)
    narrow = sleeping(step, latency_seconds=1e-6, bytes_per_second=1e5)

    def rate(workers: int, local_steps: int, shards: int = 1, cluster: ClusterSettings = far) -> float:
        rows = toy_rows(workers * 10 * 128, groups=workers)
        chosen = {"algorithm": "agn", "local_steps": local_steps, "shards": shards, "sharding": "static"}
        return samples_per_second(run(train=rows, workers=workers, epochs=1, cluster=cluster, **chosen).records)

    # Each push holds the lock for four latencies, but for those of the owner.
    for workers, local_steps in ((8, 1), (16, 1), (8, 2)):
        of_server = workers / (workers - 1) / (4 * latency) * local_steps * 10
        assert rate(workers, local_steps) == pytest.approx(of_server, rel=0.1)
    assert rate(8, 64) > 0.65 * 8 / step * 10
    assert rate(8, 1, shards=8, cluster=narrow) > 3 * rate(8, 1, cluster=narrow)
