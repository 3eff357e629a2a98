"""One worker in four is ten times slower: gossip runs at the pace of the others, all-reduce at the slow one's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import LinearGradients, Watcher

from training.simulation.cluster import ClusterSettings

WORKERS = 4
GOSSIP: dict[str, dict[str, Any]] = {
    "ad-psgd": {"algorithm": "ad-psgd"},
    "ad-psgd beside": {"algorithm": "ad-psgd", "overlap": "thread"},
    "ad-psgd additive": {"algorithm": "ad-psgd", "overlap": "thread", "exchange": "additive"},
    "swarm-sgd": {"algorithm": "swarm-sgd", "local_steps": 3},
    "swarm-sgd with slowmo": {"algorithm": "swarm-sgd", "slowmo": {"tau": 12}},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd"},
    "local-sgd": {"algorithm": "local-sgd"},
    "d-psgd": {"algorithm": "d-psgd"},
    "swarm-sgd with exact average": {"algorithm": "swarm-sgd", "slowmo": {"tau": 12, "exact_average": True}},
}


def rate(chosen: dict[str, Any], slow: dict[int, float]) -> float:
    """Steps per second of all workers, while all are active."""
    cluster = ClusterSettings.sleeping(5e-3, jitter=0.1, slow_ranks=slow)
    watcher = Watcher()
    LinearGradients(workers=WORKERS, steps=150, seed=1).drive(**chosen, cluster=cluster, before_step=watcher)
    end = min(times[-1] for times in watcher.began.values())
    return float(sum(np.searchsorted(times, end, side="right") for times in watcher.began.values()) / end)


@pytest.mark.parametrize("method", GOSSIP)
def test_methods_that_gossip_keep_the_samples_of_the_fast_workers(method: str) -> None:
    kept = rate(GOSSIP[method], {2: 10.0}) / rate(GOSSIP[method], {})
    # Ideally (3 + 1/10) / 4.
    assert 0.65 <= kept <= 0.8


@pytest.mark.parametrize("method", TOGETHER)
def test_methods_that_wait_for_each_other_are_as_slow_as_the_slowest(method: str) -> None:
    kept = rate(TOGETHER[method], {2: 10.0}) / rate(TOGETHER[method], {})
    assert 0.08 <= kept <= 0.15


@pytest.mark.parametrize("method", ["ad-psgd", "swarm-sgd"])
def test_the_slow_worker_learns_from_the_others(method: str) -> None:
    # Its own few steps would leave it near the start: it follows by the averages that others begin with it.
    problem = LinearGradients(workers=WORKERS, steps=60, seed=1, noise=0)
    problem.initial[:] = 1
    cluster = ClusterSettings.sleeping(5e-3, jitter=0.1, slow_ranks={2: 10.0})
    chosen = {"optimizer": "sgd", "learning_rate": 0.05, "cluster": cluster}
    alone = (1 - 0.05 * 0.7) ** 6
    found = problem.drive(**GOSSIP[method], **chosen)
    assert found[5, 2].mean() < 0.6 * alone
