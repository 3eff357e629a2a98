"""AR-SGD is a plain loop of torch over all batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from simulated import models, run, toy_network, toy_rows
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, Adam, Optimizer

from training.readers.batch import Batch
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


def all_batches(workers: int, epochs: int) -> Iterator[Batch]:
    """The batches of all workers in each step, joined."""
    for epoch in range(epochs):
        plan = plan_epoch(UNEVEN.group_rows, world_size=workers, batch_size=10, seed=1, epoch=epoch)
        rows_of_steps: list[list[NDArray[np.int64]]] = [[] for _ in range(plan.num_steps)]
        for rank in range(workers):
            order = UNEVEN.reading_order(assign_rows(plan, rank=rank, epoch=epoch))
            bounds = step_bounds(len(order), plan.num_steps)
            for step, rows in enumerate(rows_of_steps):
                rows.append(order[bounds[step] : bounds[step + 1]])
        for rows in rows_of_steps:
            yield UNEVEN.rows.batch(np.concatenate(rows))


def train_by_torch(settings: dict[str, Any], *, workers: int) -> NDArray[np.float64]:
    """The parameters of one network after two epochs over the batches of all workers together."""
    network = toy_network()
    optimizer = torch_optimizer(settings, network.parameters(), rate=0.05)
    for batch in all_batches(workers, epochs=2):
        logits = network(*batch.inputs)
        losses = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        optimizer.zero_grad()
        mean_loss = (losses * batch.weights).mean()
        mean_loss.backward()
        optimizer.step()
    return parameters_to_vector(network.parameters()).detach().numpy()


@pytest.mark.parametrize("settings", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_ar_sgd_is_one_worker_fed_all_batches(settings: dict[str, Any], workers: int) -> None:
    ar_sgd = {"algorithm": "ar-sgd", "scale_learning_rate": False}

    simulated = run(workers=workers, train=UNEVEN, **ar_sgd, **settings)

    parameters = train_by_torch(settings, workers=workers)
    expected = np.tile(parameters, (workers, 1))
    np.testing.assert_allclose(models(simulated), expected, rtol=0, atol=1e-12)
