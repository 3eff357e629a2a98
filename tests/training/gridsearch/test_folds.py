"""Trainings on folds are those of a plain loop with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.optim import SGD, Adam

from features.columns import hlf_names
from hep_core.random_streams import random_stream
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.networks.scaling_layer import Scaler
from training.flat_model import FlatModel
from training.gridsearch.search import Curves
from training.gridsearch.trainings import Fold, make_folds, steps_per_epoch, train_on_fold
from training.loop import factories
from training.loop.schedule import learning_rate
from training.readers.batch import Rows
from training.readers.sharding import step_bounds
from training.settings import TrainSettings
from training.workloads.gradients import compute_sums, weighted_losses

NUM_CLASSES = 3
NUM_FEATURES = len(hlf_names())
SCALERS = {
    "hlf": Scaler(
        np.linspace(-1, 1, NUM_FEATURES).tolist(), np.linspace(1, 2, NUM_FEATURES).tolist()
    )
}
MakeOptimizer = Callable[[list[nn.Parameter]], Any]
MUON = {"optimizer": "muon", "learning_rate": 0.02, "weight_decay": 0.1}


class MuonOfLayers:
    """Muon of the parameters of some layers, with the interface of torch's optimisers."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._model = FlatModel(nn.ParameterList(parameters))
        self._optimizer = factories.make_optimizer(self._model, TrainSettings.model_validate(MUON))
        self.param_groups = self._optimizer.param_groups

    def zero_grad(self) -> None:
        self._model.zero_gradient()

    def step(self) -> None:
        self._optimizer.step()


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default_dtype)


def make_network() -> HlfClassifier:
    return HlfClassifier(HlfSettings(hidden=[7, 5]), SCALERS, NUM_CLASSES)


def make_rows(num_rows: int) -> Rows:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, NUM_CLASSES, num_rows)
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))
    hlf = centres[labels] + rng.normal(size=(num_rows, NUM_FEATURES))
    weights = rng.uniform(0.5, 2.0, num_rows)
    return Rows((torch.from_numpy(hlf),), torch.from_numpy(labels), torch.from_numpy(weights))


def train_with_torch(
    rows: Rows,
    fold: Fold,
    seed: int,
    make_optimizer: MakeOptimizer,
    settings: TrainSettings,
    num_steps: int,
) -> Curves:
    """The curves of one training as a plain torch loop."""
    torch.manual_seed(seed)
    network = make_network()
    optimizer = make_optimizer(list(network.parameters()))
    curves = Curves([], [], [])
    for epoch in range(settings.epochs):
        order = random_stream(seed, "fold", epoch).permutation(fold.train)
        loss_sum, weight_sum, num_seen = 0.0, 0.0, 0
        for batch_rows in np.split(order, step_bounds(len(order), num_steps)[1:-1]):
            batch = rows.batch(batch_rows)
            num_seen += len(batch_rows)
            rate = learning_rate(settings, epoch + num_seen / len(order))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            losses = weighted_losses(network(*batch.inputs), batch.labels, batch.weights)
            losses.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss_sum += losses.sum().item()
            weight_sum += batch.weights.sum().item()
        val_batch = rows.batch(fold.val)
        logits = network(*val_batch.inputs).detach()
        validation = compute_sums(logits, val_batch.labels, val_batch.weights)
        curves.train_loss.append(loss_sum / weight_sum)
        curves.val_loss.append(validation.mean_loss)
        curves.val_accuracy.append(validation.accuracy)
    return curves


@pytest.mark.parametrize(
    ("make_optimizer", "settings"),
    [
        pytest.param(
            lambda parameters: Adam(parameters, lr=0.01, weight_decay=0.1),
            {
                "learning_rate": 0.01,
                "weight_decay": 0.1,
                "schedule": {"warmup_epochs": 1.5, "decay": "cosine"},
            },
            id="adam with weight decay and a schedule",
        ),
        pytest.param(
            lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
            {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9},
            id="sgd with momentum",
        ),
        pytest.param(MuonOfLayers, MUON, id="muon"),
    ],
)
def test_a_training_has_the_numbers_of_torch(
    make_optimizer: MakeOptimizer, settings: dict[str, Any]
) -> None:
    # 203 events in folds of 50 and 51: some folds have longer batches than others.
    rows = make_rows(203)
    folds = make_folds(rows.labels.numpy(), 4, seed=3)
    num_steps = steps_per_epoch(folds, batch_size=16)
    assert num_steps == 10
    train = TrainSettings.model_validate({"algorithm": "sgd", "epochs": 10, **settings})

    for seed, fold in ((1, folds[0]), (2, folds[3])):
        curves = train_on_fold(make_network, train, rows, fold, seed=seed, num_steps=num_steps)
        torch_curves = train_with_torch(rows, fold, seed, make_optimizer, train, num_steps)

        np.testing.assert_allclose(curves, torch_curves, rtol=0, atol=1e-8)
        assert curves.val_accuracy[-1] > curves.val_accuracy[0]


def test_an_event_that_is_not_finite_spoils_only_the_losses_that_it_enters() -> None:
    rows = make_rows(120)
    folds = make_folds(rows.labels.numpy(), 4, seed=3)
    features_with_nan = rows.inputs[0].clone()
    first_validation_event = int(folds[0].val[0])
    features_with_nan[first_validation_event] = float("nan")
    with_nan = rows._replace(inputs=(features_with_nan,))
    settings = TrainSettings(algorithm="sgd", epochs=3, learning_rate=0.01)

    def train(rows: Rows, fold: Fold) -> Curves:
        return train_on_fold(make_network, settings, rows, fold, seed=1, num_steps=6)

    without_nan = train(rows, folds[0])
    nan_in_validation = train(with_nan, folds[0])
    nan_in_training = train(with_nan, folds[1])

    assert nan_in_validation.train_loss == without_nan.train_loss
    assert np.isnan(nan_in_validation.val_loss).all()
    # As in any training, a step whose gradient is not finite has no update.
    assert np.isnan(nan_in_training.train_loss).all()
    assert nan_in_training.val_loss[-1] < nan_in_training.val_loss[0]


@given(
    st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=60),
    st.integers(min_value=2, max_value=5),
    st.integers(min_value=0, max_value=2**32 - 1),
)
def test_folds_are_those_of_scikit_learn(labels: list[int], num_folds: int, seed: int) -> None:
    # Every class has an event for each fold.
    classes = list(range(max(labels) + 1))
    all_labels = np.array(labels + classes * num_folds)

    folds = make_folds(all_labels, num_folds, seed=seed)

    splitter = StratifiedKFold(num_folds, shuffle=True, random_state=seed)
    no_features = np.zeros(len(all_labels))
    expected_folds = list(splitter.split(no_features, all_labels))
    assert len(folds) == num_folds
    for fold, (expected_train, expected_val) in zip(folds, expected_folds, strict=True):
        np.testing.assert_array_equal(fold.train, expected_train)
        np.testing.assert_array_equal(fold.val, expected_val)
