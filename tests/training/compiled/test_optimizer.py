"""The compiled optimisers give the numbers of torch's, and each takes up the other's
checkpoints."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from simulated import VectorRow, settings

from training.compiled.optimizer import VectorOptimizer
from training.loop.factories import make_optimizer, torch_optimizer

OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.02},
    {"optimizer": "adamw", "weight_decay": 0.02},
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "weight_decay": 0.02},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.02},
]
SIZE = 50
DENORMAL = {"float64": 1e-310, "float32": 1e-40}


class Training(NamedTuple):
    """A vector of parameters with its optimiser."""

    row: VectorRow
    optimizer: Any

    def take_steps(self, *, seed: int, steps: int) -> None:
        """Take steps along random gradients, some of them denormal, at a falling rate."""
        rng = np.random.default_rng(seed)
        dtype = self.row.parameters.dtype
        for step in range(steps):
            gradient = rng.normal(size=SIZE)
            gradient[:5] *= DENORMAL[dtype.name]
            self.row.write_gradient(gradient)
            self.optimizer.param_groups[0]["lr"] = 0.05 * 0.99**step
            self.optimizer.step()
            np.testing.assert_array_equal(self.row.gradient, gradient.astype(dtype))


def start_training(
    selected: dict[str, Any], *, is_compiled: bool, precision: str = "float64"
) -> Training:
    """A training at the common start, with torch's optimiser or with the compiled one."""
    row = VectorRow(np.random.default_rng(1).normal(size=SIZE).astype(precision))
    train = settings(**selected, workers=1)
    if is_compiled:
        return Training(row, make_optimizer(row, train))
    return Training(row, torch_optimizer(row.flat, train))


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("selected", OPTIMIZERS)
def test_steps_are_those_of_torch(
    selected: dict[str, Any], precision: str, tolerance: float
) -> None:
    by_torch = start_training(selected, is_compiled=False, precision=precision)
    compiled = start_training(selected, is_compiled=True, precision=precision)
    assert isinstance(compiled.optimizer, VectorOptimizer)

    for training in (by_torch, compiled):
        training.take_steps(seed=2, steps=100)

    parameters, expected = compiled.row.parameters, by_torch.row.parameters
    np.testing.assert_allclose(parameters, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("selected", OPTIMIZERS)
@pytest.mark.parametrize("saves_compiled", [False, True])
@pytest.mark.parametrize("loads_compiled", [False, True])
def test_each_optimizer_continues_from_a_checkpoint_of_either(
    selected: dict[str, Any], saves_compiled: bool, loads_compiled: bool
) -> None:
    uninterrupted = start_training(selected, is_compiled=saves_compiled)
    uninterrupted.take_steps(seed=2, steps=5)
    checkpoint = io.BytesIO()
    torch.save(uninterrupted.optimizer.state_dict(), checkpoint)
    checkpoint.seek(0)

    resumed = start_training(selected, is_compiled=loads_compiled)
    resumed.row.write(uninterrupted.row.parameters)
    resumed.optimizer.load_state_dict(torch.load(checkpoint, weights_only=True))
    resumed_rate = resumed.optimizer.param_groups[0]["lr"]
    rate = uninterrupted.optimizer.param_groups[0]["lr"]
    for training in (uninterrupted, resumed):
        training.take_steps(seed=3, steps=5)

    assert resumed_rate == rate
    tolerance = 0.0
    if saves_compiled != loads_compiled:
        tolerance = 1e-13
    np.testing.assert_allclose(
        resumed.row.parameters, uninterrupted.row.parameters, rtol=0, atol=tolerance
    )
