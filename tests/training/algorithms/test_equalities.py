"""AR-SGD is a plain loop of torch over all batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from simulated import models, run, toy_network, toy_rows
from torch.optim import SGD, Adam, Optimizer

from training.readers.sharding import assign_rows, plan_epoch, step_bounds

OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adam", "weight_decay": 0.01},
]
#: Row groups of very different sizes, and a number of rows that no number of workers divides.
UNEVEN = replace(toy_rows(323), group_rows=[1, 79, 1, 1, 1, 80, 80, 80])


def torch_optimizer(settings: dict[str, Any], parameters: Any, rate: float) -> Optimizer:
    decay = settings.get("weight_decay", 0.0)
    if settings["optimizer"] == "adam":
        return Adam(parameters, lr=rate, weight_decay=decay)
    return SGD(parameters, lr=rate, momentum=settings.get("momentum", 0.0), weight_decay=decay)


def sequential(
    settings: dict[str, Any], *, workers: int, rate: float = 0.05, epochs: int = 2
) -> NDArray[np.float64]:
    """A plain torch loop over one network that is fed the batches of all workers together."""
    network, rows = toy_network(), UNEVEN
    optimizer = torch_optimizer(settings, network.parameters(), rate)
    for epoch in range(epochs):
        plan = plan_epoch(rows.group_rows, world_size=workers, batch_size=10, seed=1, epoch=epoch)
        shares = [assign_rows(plan, rank=rank, epoch=epoch) for rank in range(workers)]
        orders = [rows.reading_order(share) for share in shares]
        bounds = [step_bounds(len(order), plan.num_steps) for order in orders]
        for step in range(plan.num_steps):
            picked = np.concatenate(
                [o[b[step] : b[step + 1]] for o, b in zip(orders, bounds, strict=True)]
            )
            batch = rows.rows.batch(picked)
            losses = torch.nn.functional.cross_entropy(
                network(*batch.inputs), batch.labels, reduction="none"
            )
            optimizer.zero_grad()
            ((losses * batch.weights).sum() / len(picked)).backward()
            optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()]).numpy()


def assert_all_equal(
    actual: NDArray[np.float64], expected: NDArray[np.float64], tolerance: float = 1e-12
) -> None:
    np.testing.assert_allclose(
        actual, np.broadcast_to(expected, actual.shape), rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("settings", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_ar_sgd_is_one_worker_fed_all_batches(settings: dict[str, Any], workers: int) -> None:
    actual = models(
        run(
            algorithm="ar-sgd", workers=workers, scale_learning_rate=False, train=UNEVEN, **settings
        )
    )
    assert_all_equal(actual, sequential(settings, workers=workers))
