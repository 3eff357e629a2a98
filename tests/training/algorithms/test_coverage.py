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
TOGETHER = {"algorithm": "ar-sgd"}
PLAIN_LOCAL = {"algorithm": "local-sgd", "local_steps": 3}
ALONE = {"algorithm": "sgd", "workers": 1}
#: Of each method, settings with which it is another one, and that one; `workers` is 4 where nothing
#: else is said.
SPECIAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sgd": (ALONE, TOGETHER | {"workers": 1}),
    "ar-sgd": (TOGETHER, {"algorithm": "local-sgd", "local_steps": 1}),
    "local-sgd": (PLAIN_LOCAL, {"algorithm": "diloco", "local_steps": 3, "outer_rate": 1.0, "outer_momentum": 0.0}),
    "diloco": ({"algorithm": "diloco", "local_steps": 1, "outer_rate": 1.0, "outer_momentum": 0.0}, TOGETHER),
    "d-psgd": ({"algorithm": "d-psgd", "workers": 1}, ALONE),
    "qg-dsgdm": ({"algorithm": "qg-dsgdm", "beta": 0.0, "topology": "complete"}, TOGETHER),
    "choco-sgd": ({"algorithm": "choco-sgd", "fraction": 1.0, "gamma": 1.0, "topology": "complete"}, TOGETHER),
    "ad-psgd": ({"algorithm": "ad-psgd", "workers": 1}, ALONE),
    "swarm-sgd": ({"algorithm": "swarm-sgd", "local_steps": 1, "workers": 1}, ALONE),
    "mpca": ({"algorithm": "mpca", "alpha_free": 99, "workers": 1}, ALONE),
    "downpour": ({"algorithm": "downpour", "workers": 1}, ALONE),
    "dynsgd": ({"algorithm": "dynsgd", "workers": 1}, ALONE),
    "agn": ({"algorithm": "agn", "local_steps": 1}, {"algorithm": "downpour"}),
    "adag": ({"algorithm": "adag", "local_steps": 3, "gamma": 1e12}, {"algorithm": "agn", "local_steps": 3}),
    "easgd": ({"algorithm": "easgd", "alpha": 1e-15, "workers": 1}, ALONE),
    "eamsgd": ({"algorithm": "eamsgd", "delta": 0.0}, {"algorithm": "easgd"}),
    "sharded": ({"algorithm": "sharded", "shards": 1}, {"algorithm": "downpour"}),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_another_one_in_a_special_case(name: str) -> None:
    first, second = SPECIAL[name]
    assert first["algorithm"] == name != second["algorithm"]

    def driven(settings: dict[str, Any]) -> NDArray[np.float64]:
        problem = LinearGradients(workers=settings.get("workers", 4), steps=12, seed=5)
        return problem.drive(cluster=JITTER, **SGD | settings)

    # Methods that average after several steps are the same after each of them.
    steps = slice(2, None, 3) if "local_steps" in first else slice(None)
    np.testing.assert_allclose(driven(first)[steps], driven(second)[steps], atol=1e-9)


def test_every_method_is_in_the_tests_of_all_methods() -> None:
    # Of golden trajectories, checkpoints, and gradients and models that are not finite.
    assert {selected["algorithm"] for selected in ALL_METHODS.values()} == set(METHODS)
