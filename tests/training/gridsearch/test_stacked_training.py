"""Stacked trainings are the trainings that each would be alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from features.columns import NUM_HLF
from models.networks.hlf import HlfClassifier
from models.networks.scaling_layer import Scaler
from training.gridsearch.stacked_perceptrons import StackedPerceptrons
from training.gridsearch.stacked_training import (
    Curves,
    Fold,
    Member,
    make_folds,
    steps_per_epoch,
    train_stacked,
)
from training.random_streams import random_stream
from training.readers.batch import Rows
from training.readers.sharding import step_bounds
from training.workloads.sums import sums_of, weighted_losses

NUM_CLASSES = 3
SCALERS = {"hlf": Scaler(np.linspace(-1, 1, NUM_HLF).tolist(), np.linspace(1, 2, NUM_HLF).tolist())}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adam": lambda parameters: Adam(parameters, lr=0.01),
    "adam with weight decay": lambda parameters: Adam(parameters, lr=0.01, weight_decay=0.1),
    "sgd with momentum": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
}


@pytest.fixture(autouse=True)
def double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make_network() -> HlfClassifier:
    return HlfClassifier([7, 5], SCALERS, NUM_CLASSES)


def make_rows(num_rows: int) -> Rows:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, NUM_CLASSES, num_rows)
    centres = rng.normal(size=(NUM_CLASSES, NUM_HLF))
    hlf = centres[labels] + rng.normal(size=(num_rows, NUM_HLF))
    weights = rng.uniform(0.5, 2.0, num_rows)
    return Rows((torch.from_numpy(hlf),), torch.from_numpy(labels), torch.from_numpy(weights))


def alone(
    rows: Rows, member: Member, make_optimizer: Callable[[list[nn.Parameter]], Optimizer], num_steps: int, epochs: int
) -> Curves:
    """One training as a plain loop over layers."""
    torch.manual_seed(member.seed)
    network = make_network()
    optimizer = make_optimizer(list(network.parameters()))
    curves = Curves([], [], [])
    for epoch in range(epochs):
        order = random_stream(member.seed, "fold", epoch).permutation(member.fold.train)
        loss, weight = 0.0, 0.0
        for part in np.split(order, step_bounds(len(order), num_steps)[1:-1]):
            batch = rows.batch(part)
            optimizer.zero_grad()
            losses = weighted_losses(network(*batch.inputs), batch.labels, batch.weights)
            losses.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss, weight = loss + losses.sum().item(), weight + batch.weights.sum().item()
        batch = rows.batch(member.fold.val)
        sums = sums_of(network(*batch.inputs).detach(), batch.labels, batch.weights)
        for curve, value in zip(curves, (loss / weight, sums.mean_loss, sums.accuracy), strict=True):
            curve.append(value)
    return curves


def members_of(rows: Rows, *, num_folds: int = 4, seeds: tuple[int, ...] = (1, 2)) -> list[Member]:
    folds = make_folds(rows.labels.numpy(), num_folds, seed=3)
    return [Member(fold, seed) for seed in seeds for fold in folds]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.slow
def test_each_member_gets_the_numbers_that_it_gets_alone(name: str) -> None:
    # 203 events in folds of 50 and 51: batches of some members are longer than those of others.
    rows = make_rows(203)
    members = members_of(rows)
    num_steps = steps_per_epoch([member.fold for member in members], batch_size=16)
    assert num_steps == 10
    found = train_stacked(make_network, OPTIMIZERS[name], rows, members, num_steps=num_steps, epochs=10)
    for member, curves in zip(members, found, strict=True):
        expected = alone(rows, member, OPTIMIZERS[name], num_steps, epochs=10)
        for curve, other in zip(curves, expected, strict=True):
            np.testing.assert_allclose(curve, other, rtol=0, atol=1e-8)
    assert found[0].val_accuracy[-1] > found[0].val_accuracy[0]


def test_a_member_that_stops_leaves_the_others_as_they_are() -> None:
    rows = make_rows(120)
    members = members_of(rows)
    chosen: dict[str, Any] = {"num_steps": 6, "epochs": 40}
    make_optimizer = OPTIMIZERS["sgd with momentum"]
    full = train_stacked(make_network, make_optimizer, rows, members, **chosen)
    stopped = train_stacked(make_network, make_optimizer, rows, members, **chosen, patience=3)
    lengths = {len(curves.val_loss) for curves in stopped}
    assert len(lengths) > 1, "the test needs members that stop at different epochs"
    for curves, other in zip(stopped, full, strict=True):
        length = len(curves.val_loss)
        np.testing.assert_allclose(curves.val_loss, other.val_loss[:length], rtol=0, atol=1e-12)
        assert length == 40 or np.argmin(other.val_loss[:length]) == length - 4


def test_a_member_that_diverges_does_not_reach_the_others() -> None:
    rows = make_rows(120)
    members = members_of(rows, seeds=(1,))
    poisoned = rows._replace(inputs=(rows.inputs[0].clone(),))
    row = int(members[0].fold.val[0])
    poisoned.inputs[0][row] = float("nan")
    chosen: dict[str, Any] = {"num_steps": 6, "epochs": 3}
    found = train_stacked(make_network, OPTIMIZERS["adam"], poisoned, members, **chosen)
    expected = train_stacked(make_network, OPTIMIZERS["adam"], rows, members, **chosen)
    assert found[0].train_loss == expected[0].train_loss
    assert np.isnan(found[0].val_loss).all()
    assert all(np.isnan(curves.train_loss).any() for curves in found[1:])


def test_no_patience_waits_for_a_loss_that_is_not_finite() -> None:
    rows = make_rows(60)
    rows.inputs[0][:] = float("nan")
    (curves,) = train_stacked(
        make_network, OPTIMIZERS["adam"], rows, members_of(rows, seeds=(1,))[:1], num_steps=3, epochs=9, patience=2
    )
    assert len(curves.val_loss) == 3


def test_folds_cover_the_rows_once_and_keep_the_classes_in_proportion() -> None:
    labels = np.repeat([0, 1, 2], [40, 20, 10])
    folds = make_folds(labels, 5, seed=1)
    assert sorted(np.concatenate([fold.val for fold in folds])) == list(range(70))
    for fold in folds:
        assert sorted(np.concatenate(fold)) == list(range(70))
        assert np.bincount(labels[fold.val]).tolist() == [8, 4, 2]
    again = make_folds(labels, 5, seed=1)
    assert all((one.val == other.val).all() for one, other in zip(folds, again, strict=True))


def test_a_network_comes_out_of_the_stack_as_it_went_in() -> None:
    networks = [make_network() for _ in range(3)]
    stack = StackedPerceptrons(networks)
    inputs = torch.randn(3, 4, NUM_HLF)
    found = stack.logits(inputs)
    for place, network in enumerate(networks):
        torch.testing.assert_close(found[place], network(inputs[place]))
    copy = make_network()
    stack.unstacked(1, copy)
    torch.testing.assert_close(copy(inputs[1]), networks[1](inputs[1]))
    stack.keep([0, 2], Adam([stack.flat]))
    assert stack.num_networks == 2
    torch.testing.assert_close(stack.logits(inputs[[0, 2]])[1], networks[2](inputs[2]))


def test_networks_of_different_shapes_are_refused() -> None:
    other = HlfClassifier([7, 6], SCALERS, NUM_CLASSES)
    with pytest.raises(ValueError, match="of one shape"):
        StackedPerceptrons([make_network(), other])


def test_the_largest_fold_sets_the_number_of_steps() -> None:
    folds = [Fold(np.arange(size), np.arange(0)) for size in (32, 33)]
    assert steps_per_epoch(folds, batch_size=16) == 3
