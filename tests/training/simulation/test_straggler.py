"""One worker in four is ten times slower: it learns from the averages with the others."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import LinearGradients, sleeping

WORKERS = 4
GOSSIP: dict[str, dict[str, Any]] = {
    "ad-psgd": {"algorithm": "ad-psgd"},
    "swarm-sgd": {"algorithm": "swarm-sgd", "local_steps": 3},
}


@pytest.mark.parametrize("method", GOSSIP)
def test_the_slow_worker_learns_from_the_others(method: str) -> None:
    # Its own few steps would leave it near the start: it follows by the averages that others begin with it.
    problem = LinearGradients(workers=WORKERS, steps=60, seed=1, noise=0)
    problem.initial[:] = 1
    cluster = sleeping(5e-3, jitter=0.1, slow_ranks={2: 10.0})
    chosen = {"optimizer": "sgd", "learning_rate": 0.05, "cluster": cluster}
    alone = (1 - 0.05 * 0.7) ** 6
    found = problem.drive(**GOSSIP[method], **chosen)
    assert found[5, 2].mean() < 0.6 * alone
