"""Every registered method has a special case, and a place in the tests of all methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated import ALL_METHODS, LinearGradients, constant_step_cluster

from training.algorithms.registry import METHODS

SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "scale_learning_rate": False}
JITTER = constant_step_cluster(1e-3, jitter=0.3, latency_seconds=1e-5)
AR_SGD = {"algorithm": "ar-sgd"}
DOWNPOUR = {"algorithm": "downpour"}
ONE_WORKER = {"algorithm": "sgd", "workers": 1}
LOCAL_SGD = {"algorithm": "local-sgd", "local_steps": 3}
AGN = {"algorithm": "agn", "local_steps": 3}
DILOCO = {"algorithm": "diloco", "local_steps": 3}
PLAIN_OUTER_STEP = {"algorithm": "diloco", "outer_rate": 1.0, "outer_momentum": 0.0}
#: Settings with which each method is another one, and that one; on 4 workers by default.
SPECIAL_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sgd": (ONE_WORKER, AR_SGD | {"workers": 1}),
    "ar-sgd": (AR_SGD, {"algorithm": "local-sgd", "local_steps": 1}),
    "local-sgd": (LOCAL_SGD, PLAIN_OUTER_STEP | {"local_steps": 3}),
    "diloco": (PLAIN_OUTER_STEP | {"local_steps": 1}, AR_SGD),
    "streaming-diloco": (
        DILOCO | {"algorithm": "streaming-diloco", "fragments": 1, "overlap": 0, "mixing": 0.0},
        DILOCO,
    ),
    "async-diloco": (
        DILOCO | {"algorithm": "async-diloco", "workers": 1, "outer_momentum": 0.9},
        DILOCO | {"workers": 1},
    ),
    "d-psgd": ({"algorithm": "d-psgd", "workers": 1}, ONE_WORKER),
    "qg-dsgdm": ({"algorithm": "qg-dsgdm", "beta": 0.0, "topology": "complete"}, AR_SGD),
    "choco-sgd": (
        {"algorithm": "choco-sgd", "fraction": 1.0, "gamma": 1.0, "topology": "complete"},
        AR_SGD,
    ),
    "gradient-tracking": (
        {"algorithm": "gradient-tracking", "beta": 0.0, "topology": "complete"},
        AR_SGD,
    ),
    "sgp": ({"algorithm": "sgp", "workers": 2}, AR_SGD | {"workers": 2}),
    "ad-psgd": ({"algorithm": "ad-psgd", "workers": 1}, ONE_WORKER),
    "swarm-sgd": ({"algorithm": "swarm-sgd", "local_steps": 1, "workers": 1}, ONE_WORKER),
    "mpca": ({"algorithm": "mpca", "alpha_free": 99, "workers": 1}, ONE_WORKER),
    "downpour": (DOWNPOUR | {"workers": 1}, ONE_WORKER),
    "dynsgd": ({"algorithm": "dynsgd", "workers": 1}, ONE_WORKER),
    "agn": ({"algorithm": "agn", "local_steps": 1}, DOWNPOUR),
    "adag": ({"algorithm": "adag", "local_steps": 3, "gamma": 1e12}, AGN),
    "easgd": ({"algorithm": "easgd", "alpha": 1e-15, "workers": 1}, ONE_WORKER),
    "eamsgd": ({"algorithm": "eamsgd", "delta": 0.0}, {"algorithm": "easgd"}),
    "sharded": ({"algorithm": "sharded", "shards": 1}, DOWNPOUR),
}


def train(settings: dict[str, Any]) -> NDArray[np.float64]:
    problem = LinearGradients(workers=settings.get("workers", 4), steps=12, seed=5)
    return problem.drive(cluster=JITTER, **SGD | settings)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_another_one_in_a_special_case(name: str) -> None:
    settings, other_settings = SPECIAL_CASES[name]
    assert settings["algorithm"] == name != other_settings["algorithm"]

    models, expected = train(settings), train(other_settings)

    if "local_steps" in settings:
        # Methods that average after several steps are the same after each of them.
        models, expected = models[2::3], expected[2::3]
    np.testing.assert_allclose(models, expected, atol=1e-9)


def test_every_method_is_in_the_tests_of_all_methods() -> None:
    """Golden trajectories, checkpoints, and gradients and models that are not finite."""
    assert {settings["algorithm"] for settings in ALL_METHODS.values()} == set(METHODS)
