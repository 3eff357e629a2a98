"""All methods find the minimum, as closely as their learning rate lets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import CLUSTER, METHODS, SERVERS, LinearGradients

JITTER = CLUSTER.model_copy(update={"jitter": 0.3})
SLOWMO: dict[str, dict[str, Any]] = {
    f"{method} with slowmo": METHODS[method] | {"slowmo": {"tau": 12, "beta": 0.6}}
    for method in ("ar-sgd", "local-sgd", "d-psgd", "ad-psgd", "swarm-sgd")
}
ALL = METHODS | SLOWMO
SGD = {"optimizer": "sgd", "scale_learning_rate": False}


@pytest.mark.parametrize("method", [*ALL, *SERVERS])
def test_a_convex_function_is_minimised_though_every_worker_has_another_minimum(method: str) -> None:
    problem = LinearGradients(workers=5, steps=260, seed=3, noise=0.07)
    # Only together they find the common minimum, which is at 1.
    targets = np.random.default_rng(0).normal(size=(5, 1, 5))
    problem.pulls += problem.hessian * (targets + 1 - targets.mean(axis=0))
    # Some servers add what others average.
    rate = 0.02 if method.startswith(("downpour", "sharded")) else 0.05
    found = problem.drive(**(ALL | SERVERS)[method], **SGD, learning_rate=rate, cluster=JITTER)
    mean = found[-60:].mean(axis=1)
    # f - f* of the mean model; at the beginning it is about 1.
    excess = problem.hessian / 2 * np.square(mean - 1).sum(axis=1)
    assert problem.hessian / 2 * np.square(problem.initial - 1).sum() > 1
    assert excess.mean() < 3e-3
