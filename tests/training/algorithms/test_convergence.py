"""All methods find the minimum, as closely as their learning rate lets them, and learn the toy task from any seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import CLUSTER, METHODS, SERVERS, LinearGradients, run, settings

JITTER = CLUSTER.model_copy(update={"jitter": 0.3})
SLOWMO: dict[str, dict[str, Any]] = {
    f"{method} with slowmo": METHODS[method] | {"slowmo": {"tau": 12, "beta": 0.6}}
    for method in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd")
}
ALL = METHODS | SLOWMO
SOME = [name for name in ALL if not name.endswith(("beside", "on a host"))]
SGD = {"optimizer": "sgd", "scale_learning_rate": False}


def with_targets(problem: LinearGradients, *, noise: float) -> LinearGradients:
    """Give each worker a minimum of its own, so that only together they find the common one, which is at 1."""
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(problem.workers, 1, 5))
    targets += 1 - targets.mean(axis=0)
    problem.pulls = problem.hessian * targets + noise * problem.pulls
    return problem


@pytest.mark.parametrize("method", [*ALL, *SERVERS])
def test_a_convex_function_is_minimised_though_every_worker_has_another_minimum(method: str) -> None:
    problem = with_targets(LinearGradients(workers=5, steps=260, seed=3), noise=0.1)
    # Some servers add what others average.
    rate = 0.02 if method.startswith(("downpour", "sharded")) else 0.05
    found = problem.drive(**(ALL | SERVERS)[method], **SGD, learning_rate=rate, cluster=JITTER)
    mean = found[-60:].mean(axis=1)
    # f - f* of the mean model; at the beginning it is about 1.
    excess = problem.hessian / 2 * np.square(mean - 1).sum(axis=1)
    assert problem.hessian / 2 * np.square(problem.initial - 1).sum() > 1
    assert excess.mean() < 3e-3


@pytest.mark.parametrize("method", [name for name in ALL if not name.startswith("ar-sgd")])
def test_workers_disagree_in_proportion_to_the_learning_rate(method: str) -> None:
    distances = []
    for rate in (0.04, 0.02):
        problem = with_targets(LinearGradients(workers=5, steps=160, seed=3), noise=1.0)
        start = np.ones((5, 5))
        found = problem.drive(**ALL[method], **SGD, learning_rate=rate, cluster=JITTER, initial=start)[40:]
        distances.append(np.sqrt(np.square(found - found.mean(axis=1, keepdims=True)).sum(axis=2).mean()))
    assert distances[0] / distances[1] == pytest.approx(2, rel=0.15)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("method", SOME)
@pytest.mark.slow
def test_the_toy_task_is_learnt_from_any_seed(method: str, seed: int) -> None:
    # The methods with Adam need a lower rate than the one with plain SGD.
    rate = 0.4 if method == "qg-dsgdm" else 0.04
    simulated = run(**ALL[method], seed=seed, learning_rate=rate, epochs=5, batch_size=16, cluster=JITTER)
    last = simulated.records[0][-1]
    assert last["val_accuracy"] > 0.8
    assert min(worker[-1]["worker_val_accuracy"] for worker in simulated.records) > 0.7
    assert last["train_loss"] < simulated.records[0][0]["train_loss"]


@pytest.mark.parametrize("method", [name for name in SOME if not name.endswith("slowmo")])
def test_disagreement_falls_when_the_learning_rate_falls(method: str) -> None:
    schedule = {"decay": "step", "milestones": [3], "factor": 0.01}
    simulated = run(**METHODS[method], optimizer="sgd", epochs=6, schedule=schedule, cluster=JITTER)
    distances = [record["consensus_distance"] for record in simulated.records[0]]
    if method == "ar-sgd":
        assert max(distances) < 1e-14
    else:
        # With work units a worker may still hold steps of the epoch before.
        settled = distances[4:] if settings(**METHODS[method], optimizer="sgd").has_static_shards else distances[5:]
        # Signs carry little: replicas follow slowly.
        assert 0 < max(settled) < (0.4 if "sign" in method else 0.1) * max(distances[:3])
