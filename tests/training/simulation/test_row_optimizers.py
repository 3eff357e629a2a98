"""The optimisers of virtual workers give the numbers of torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import VectorRow, settings

from training.algorithms.registry import make_optimizer
from training.simulation.row_optimizers import make_row_optimizer

CHOICES: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.02},
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "weight_decay": 0.02},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
]


@pytest.mark.parametrize("chosen", CHOICES)
def test_rows_are_updated_as_by_torch(chosen: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    start = rng.normal(size=50)
    rows = [VectorRow(start), VectorRow(start)]
    train = settings(**chosen, workers=1)
    optimizers = [make_optimizer(rows[0], train), make_row_optimizer(rows[1].flat, train)]
    for step in range(100):
        gradient = rng.normal(size=50)
        for row, optimizer in zip(rows, optimizers, strict=True):
            row.write_gradient(gradient)
            optimizer.param_groups[0]["lr"] = 0.05 * 0.99**step
            optimizer.step()
        np.testing.assert_allclose(rows[1].parameters, rows[0].parameters, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(rows[1].gradient, gradient)


@pytest.mark.parametrize("chosen", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}])
def test_the_state_has_the_names_of_torch_and_can_be_taken_up(chosen: dict[str, Any]) -> None:
    train = settings(**chosen, workers=1)
    first, second = VectorRow(np.ones(4)), VectorRow(np.ones(4))
    optimizer, other = make_row_optimizer(first.flat, train), make_row_optimizer(second.flat, train)
    torchs = make_optimizer(VectorRow(np.ones(4)), train)
    assert {"step", *torchs.state[torchs.param_groups[0]["params"][0]]} == set(optimizer.state[0])  # type: ignore[index]
    for _ in range(3):
        first.write_gradient(np.arange(4.0))
        optimizer.step()
    second.write(first.parameters)
    other.load_state_dict(optimizer.state_dict())
    for row, each in ((first, optimizer), (second, other)):
        row.write_gradient(np.ones(4))
        each.step()
    np.testing.assert_array_equal(first.parameters, second.parameters)
