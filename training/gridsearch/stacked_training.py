"""Trains the networks of one setting on all folds and with all seeds together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.optim import Optimizer

from models.networks.hlf import HlfClassifier
from training.gridsearch.stacked_perceptrons import StackedPerceptrons
from training.random_streams import random_stream
from training.readers.batch import Rows
from training.readers.sharding import step_bounds
from training.workloads.sums import weighted_losses

_VALIDATED_AT_ONCE: Final = 4096


class Fold(NamedTuple):
    """One division of the training split into rows for training and for validation."""

    train: NDArray[np.int64]
    """Numbers of the rows for training."""
    val: NDArray[np.int64]
    """Numbers of the rows for validation."""


class Member(NamedTuple):
    """One of the stacked trainings."""

    fold: Fold
    seed: int
    """Seed of the initial weights and of the order of the events."""


class Curves(NamedTuple):
    """Curves of a training, one number per epoch."""

    train_loss: list[float]
    """Mean loss over the epoch, during the updates."""
    val_loss: list[float]
    val_accuracy: list[float]
    """Accuracy with event and class weights, like the losses."""


def make_folds(labels: NDArray[np.int64], num_folds: int, *, seed: int) -> list[Fold]:
    """Divide events into folds with equal shares of the classes; each event is in one validation part.

    Args:
        labels: (num_rows,) classes of the training split.
        num_folds: Number of folds, at least 2.
        seed: Seed of the search; all trials get the same folds.

    Raises:
        ValueError: A class has fewer events than the number of folds.

    Examples:
        >>> folds = make_folds(np.array([0, 1] * 6), 3, seed=1)
        >>> sorted(np.concatenate([fold.val for fold in folds]).tolist()) == list(range(12))
        True
    """
    divider = StratifiedKFold(num_folds, shuffle=True, random_state=seed)
    return [Fold(train, val) for train, val in divider.split(np.zeros(len(labels)), labels)]


def steps_per_epoch(folds: Sequence[Fold], batch_size: int) -> int:
    """Number of steps per epoch of every member: as many as the largest fold needs.

    Examples:
        >>> steps_per_epoch([Fold(np.arange(10), np.arange(5)), Fold(np.arange(11), np.arange(4))], batch_size=5)
        3
    """
    return -(-max(len(fold.train) for fold in folds) // batch_size)


def train_stacked(
    make_network: Callable[[], HlfClassifier],
    make_optimizer: Callable[[list[nn.Parameter]], Optimizer],
    rows: Rows,
    members: Sequence[Member],
    *,
    num_steps: int,
    epochs: int,
    patience: int | None = None,
) -> list[Curves]:
    """Train all members together, with the same numbers as one after the other.

    Args:
        make_network: Makes a network with fresh weights from torch's random state; all have the same shape.
        make_optimizer: Makes an elementwise optimiser over the given parameters.
        rows: The training split with the high-level features.
        members: The trainings.
        num_steps: Steps per epoch, from `steps_per_epoch`; the events of a fold are spread evenly over them.
        epochs: Highest number of epochs.
        patience: Number of epochs without a lower validation loss after which a member stops; None: never.

    Returns:
        The curves of each member.
    """
    stack = StackedPerceptrons([_seeded(make_network, member.seed) for member in members])
    optimizer = make_optimizer([stack.flat])
    curves = [Curves([], [], []) for _ in members]
    active = list(range(len(members)))
    for epoch in range(epochs):
        learning = [members[place] for place in active]
        train_loss = _one_epoch(stack, optimizer, rows, learning, num_steps=num_steps, epoch=epoch)
        val_loss, val_accuracy = _validate(stack, rows, [member.fold.val for member in learning])
        for place, *found in zip(active, train_loss, val_loss, val_accuracy, strict=True):
            for curve, value in zip(curves[place], found, strict=True):
                curve.append(value)
        staying = [k for k, place in enumerate(active) if not _has_stopped(curves[place].val_loss, patience)]
        if not staying:
            break
        if len(staying) < len(active):
            stack.keep(staying, optimizer)
            active = [active[k] for k in staying]
    return curves


def _seeded(make_network: Callable[[], HlfClassifier], seed: int) -> HlfClassifier:
    torch.manual_seed(seed)
    return make_network()


def _has_stopped(val_losses: Sequence[float], patience: int | None) -> bool:
    """Whether the lowest loss is more than `patience` epochs old; only finite losses count."""
    if patience is None:
        return False
    finite = np.where(np.isfinite(val_losses), val_losses, np.inf)
    return len(val_losses) - 1 - int(np.argmin(finite)) >= patience


def _one_epoch(
    stack: StackedPerceptrons,
    optimizer: Optimizer,
    rows: Rows,
    members: Sequence[Member],
    *,
    num_steps: int,
    epoch: int,
) -> list[float]:
    """Run all steps of an epoch; returns the weighted mean losses."""
    orders = [random_stream(each.seed, "fold", epoch).permutation(each.fold.train) for each in members]
    places, shares = _deal(orders, num_steps)
    gradient = stack.flat.grad
    if gradient is None:
        raise AssertionError("the stack has no gradient")
    kept: list[tuple[Tensor, Tensor]] = []
    for chosen, share in zip(places, shares, strict=True):
        inputs, labels, weights = _batch(rows, chosen)
        gradient.zero_()
        losses = _losses(stack.logits(inputs), labels, weights)
        (losses * share).sum().backward()
        optimizer.step()
        kept.append((losses.detach(), weights))
    losses, weights = ((torch.stack(parts) * (shares > 0)).sum(dim=(0, 2)) for parts in zip(*kept, strict=True))
    means: list[float] = (losses / weights).tolist()
    return means


def _deal(orders: Sequence[NDArray[np.int64]], num_steps: int) -> tuple[Tensor, Tensor]:
    """Spread rows evenly over the steps.

    Returns:
        Row numbers (num_steps, K, longest), and shares of the same shape: 1 / size of the batch, 0 for padding. Short
        batches are padded with their last event, since 0 times a number that is not finite is not 0.
    """
    bounds = [step_bounds(len(order), num_steps) for order in orders]
    sizes = np.stack([np.diff(ends) for ends in bounds], axis=1)
    across = np.arange(sizes.max())
    within = np.minimum(across, sizes[..., None] - 1)
    picked = [order[ends[:-1, None] + within[:, k]] for k, (order, ends) in enumerate(zip(orders, bounds, strict=True))]
    places = np.stack(picked, axis=1)
    shares = (across < sizes[..., None]) / sizes[..., None]
    return torch.from_numpy(places), torch.from_numpy(shares).to(torch.get_default_dtype())


def _batch(rows: Rows, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (K, B, NUM_HLF), labels and weights (K, B) of the rows with these numbers (K, B)."""
    flat = chosen.reshape(-1)
    inputs, labels, weights = (column.index_select(0, flat) for column in (rows.inputs[0], rows.labels, rows.weights))
    return inputs.view(*chosen.shape, -1), labels.view(chosen.shape), weights.view(chosen.shape)


def _losses(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropies (K, B)."""
    return weighted_losses(logits.flatten(0, 1), labels.reshape(-1), weights.reshape(-1)).view(labels.shape)


def _validate(
    stack: StackedPerceptrons, rows: Rows, parts: Sequence[NDArray[np.int64]]
) -> tuple[list[float], list[float]]:
    """Weighted mean losses and accuracies."""
    sums = torch.zeros(3, len(parts), dtype=torch.float64)
    num_steps = -(-max(len(part) for part in parts) // _VALIDATED_AT_ONCE)
    with torch.inference_mode():
        for chosen, share in zip(*_deal(parts, num_steps), strict=True):
            inputs, labels, weights = _batch(rows, chosen)
            logits = stack.logits(inputs)
            found = (_losses(logits, labels, weights), weights, (logits.argmax(dim=2) == labels) * weights)
            sums += torch.stack([(values * (share > 0)).double().sum(dim=1) for values in found])
    losses, weights, right = sums
    return (losses / weights).tolist(), (right / weights).tolist()
