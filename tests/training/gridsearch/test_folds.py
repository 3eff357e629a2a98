"""Trainings on folds are those of a plain loop with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from features.columns import hlf_names
from hep_core.random_streams import random_stream
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.networks.scaling_layer import Scaler
from training.gridsearch.trainings import Curves, Fold, make_folds, steps_per_epoch, train_on_fold
from training.loop.schedule import learning_rate
from training.readers.batch import Rows
from training.readers.sharding import step_bounds
from training.settings import TrainSettings
from training.workloads.gradients import compute_sums, weighted_losses

NUM_CLASSES = 3
SCALERS = {
    "hlf": Scaler(
        np.linspace(-1, 1, len(hlf_names())).tolist(), np.linspace(1, 2, len(hlf_names())).tolist()
    )
}
#: Each by torch and by us.
OPTIMIZERS: dict[str, tuple[Callable[[list[nn.Parameter]], Optimizer], dict[str, Any]]] = {
    "adam with weight decay and a schedule": (
        lambda parameters: Adam(parameters, lr=0.01, weight_decay=0.1),
        {
            "learning_rate": 0.01,
            "weight_decay": 0.1,
            "schedule": {"warmup_epochs": 1.5, "decay": "cosine"},
        },
    ),
    "sgd with momentum": (
        lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
        {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    ),
}


@pytest.fixture(autouse=True)
def double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make_network() -> HlfClassifier:
    return HlfClassifier(HlfSettings(hidden=[7, 5]), SCALERS, NUM_CLASSES)


def make_rows(num_rows: int) -> Rows:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, NUM_CLASSES, num_rows)
    centres = rng.normal(size=(NUM_CLASSES, len(hlf_names())))
    hlf = centres[labels] + rng.normal(size=(num_rows, len(hlf_names())))
    weights = rng.uniform(0.5, 2.0, num_rows)
    return Rows((torch.from_numpy(hlf),), torch.from_numpy(labels), torch.from_numpy(weights))


def alone(
    rows: Rows,
    fold: Fold,
    seed: int,
    make_optimizer: Callable[[list[nn.Parameter]], Optimizer],
    settings: TrainSettings,
    num_steps: int,
) -> Curves:
    """One training as a plain loop over layers."""
    torch.manual_seed(seed)
    network = make_network()
    optimizer = make_optimizer(list(network.parameters()))
    curves = Curves([], [], [])
    for epoch in range(settings.epochs):
        order = random_stream(seed, "fold", epoch).permutation(fold.train)
        loss, weight, done = 0.0, 0.0, 0
        for part in np.split(order, step_bounds(len(order), num_steps)[1:-1]):
            batch = rows.batch(part)
            done += len(part)
            optimizer.param_groups[0]["lr"] = learning_rate(settings, epoch + done / len(order))
            optimizer.zero_grad()
            losses = weighted_losses(network(*batch.inputs), batch.labels, batch.weights)
            losses.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss, weight = loss + losses.sum().item(), weight + batch.weights.sum().item()
        batch = rows.batch(fold.val)
        sums = compute_sums(network(*batch.inputs).detach(), batch.labels, batch.weights)
        for curve, value in zip(
            curves, (loss / weight, sums.mean_loss, sums.accuracy), strict=True
        ):
            curve.append(value)
    return curves


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_has_the_numbers_of_torch(name: str) -> None:
    # 203 events in folds of 50 and 51: some folds have longer batches than others.
    rows = make_rows(203)
    folds = make_folds(rows.labels.numpy(), 4, seed=3)
    num_steps = steps_per_epoch(folds, batch_size=16)
    assert num_steps == 10
    make_optimizer, keys = OPTIMIZERS[name]
    settings = TrainSettings.model_validate({"algorithm": "sgd", "epochs": 10, **keys})
    for seed, fold in ((1, folds[0]), (2, folds[3])):
        found = train_on_fold(make_network, settings, rows, fold, seed=seed, num_steps=num_steps)
        expected = alone(rows, fold, seed, make_optimizer, settings, num_steps)
        for curve, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(curve, other, rtol=0, atol=1e-8)
    assert found.val_accuracy[-1] > found.val_accuracy[0]


def test_an_event_that_is_not_finite_shows_where_it_is() -> None:
    rows = make_rows(120)
    folds = make_folds(rows.labels.numpy(), 4, seed=3)
    poisoned = rows._replace(inputs=(rows.inputs[0].clone(),))
    poisoned.inputs[0][int(folds[0].val[0])] = float("nan")

    def train(rows: Rows, fold: Fold) -> Curves:
        settings = TrainSettings(algorithm="sgd", epochs=3, learning_rate=0.01)
        return train_on_fold(make_network, settings, rows, fold, seed=1, num_steps=6)

    found = train(poisoned, folds[0])
    assert found.train_loss == train(rows, folds[0]).train_loss
    assert np.isnan(found.val_loss).all()
    # As in any training, a step whose gradient is not finite has no update.
    found = train(poisoned, folds[1])
    assert np.isnan(found.train_loss).all()
    assert found.val_loss[-1] < found.val_loss[0]
