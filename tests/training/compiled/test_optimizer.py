"""The compiled optimisers give the numbers of torch's, and each takes up the other's
checkpoints."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from simulated import VectorRow, settings

from training.compiled.optimizer import VectorOptimizer
from training.loop.factories import make_optimizer, torch_optimizer

CHOICES: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.02},
    {"optimizer": "adamw", "weight_decay": 0.02},
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "weight_decay": 0.02},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.02},
]


def pair(selected: dict[str, Any], precision: str = "float64") -> tuple[list[VectorRow], list[Any]]:
    """Two equal vectors, one with torch's optimiser and one with the compiled one."""
    start = np.random.default_rng(1).normal(size=50).astype(precision)
    rows = [VectorRow(start), VectorRow(start)]
    train = settings(**selected, workers=1)
    return rows, [torch_optimizer(rows[0].flat, train), make_optimizer(rows[1], train)]


def take_steps(rows: list[VectorRow], optimizers: list[Any], *, seed: int, steps: int) -> None:
    """The same gradients and rates for all."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        gradient = rng.normal(size=50)
        # Some are denormal numbers.
        gradient[:5] *= 1e-310 if rows[0].parameters.dtype == np.float64 else 1e-40
        for row, optimizer in zip(rows, optimizers, strict=True):
            row.write_gradient(gradient)
            optimizer.param_groups[0]["lr"] = 0.05 * 0.99**step
            optimizer.step()
            np.testing.assert_array_equal(row.gradient, gradient.astype(row.parameters.dtype))


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("selected", CHOICES)
def test_steps_are_those_of_torch(selected: dict[str, Any], precision: str) -> None:
    rows, optimizers = pair(selected, precision)
    assert isinstance(optimizers[1], VectorOptimizer)
    take_steps(rows, optimizers, seed=2, steps=100)
    tolerance = 1e-12 if precision == "float64" else 2e-5
    np.testing.assert_allclose(rows[1].parameters, rows[0].parameters, rtol=0, atol=tolerance)


@pytest.mark.parametrize("selected", CHOICES)
@pytest.mark.parametrize("source", [0, 1])
def test_a_checkpoint_of_either_is_taken_up_by_both(selected: dict[str, Any], source: int) -> None:
    rows, optimizers = pair(selected)
    take_steps(rows, optimizers, seed=2, steps=5)
    buffer = io.BytesIO()
    torch.save(optimizers[source].state_dict(), buffer)
    repeated, remaining = pair(selected)
    for row, second in zip(repeated, remaining, strict=True):
        row.write(rows[source].parameters)
        buffer.seek(0)
        second.load_state_dict(torch.load(buffer, weights_only=True))
        assert second.param_groups[0]["lr"] == optimizers[source].param_groups[0]["lr"]
    take_steps(repeated, remaining, seed=3, steps=5)
    take_steps([rows[source]], [optimizers[source]], seed=3, steps=5)
    np.testing.assert_array_equal(repeated[source].parameters, rows[source].parameters)
    np.testing.assert_allclose(
        repeated[1 - source].parameters, rows[source].parameters, rtol=0, atol=1e-13
    )
