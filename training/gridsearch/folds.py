"""Trains the networks of one setting on all folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from torch.nn.utils import parameters_to_vector

from models.networks.hlf import HlfClassifier
from training.compiled.engines import PerceptronEngine, events_of
from training.compiled.optimizer import constants_of
from training.compiled.perceptron import perceptron_epoch, perceptron_sums
from training.loop.schedule import learning_rate
from training.random_streams import random_stream
from training.readers.batch import Rows
from training.readers.sharding import step_bounds
from training.settings import TrainSettings
from training.workloads.sums import Sums


class Fold(NamedTuple):
    """One division of the training split into rows for training and for validation."""

    train: NDArray[np.int64]
    """Numbers of the rows for training."""
    val: NDArray[np.int64]
    """Numbers of the rows for validation."""


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
    fewest = int(np.bincount(labels).min())
    if fewest < num_folds:
        raise ValueError(f"a class has {fewest} events, fewer than the {num_folds} folds")
    divider = StratifiedKFold(num_folds, shuffle=True, random_state=seed)
    return [Fold(train, val) for train, val in divider.split(np.zeros(len(labels)), labels)]


def steps_per_epoch(folds: Sequence[Fold], batch_size: int) -> int:
    """Number of steps per epoch on every fold: as many as the largest one needs.

    Examples:
        >>> steps_per_epoch([Fold(np.arange(10), np.arange(5)), Fold(np.arange(11), np.arange(4))], batch_size=5)
        3
    """
    return -(-max(len(fold.train) for fold in folds) // batch_size)


def train_on_fold(
    make_network: Callable[[], HlfClassifier],
    settings: TrainSettings,
    rows: Rows,
    fold: Fold,
    *,
    seed: int,
    num_steps: int,
) -> Curves:
    """Train one network on one fold.

    Args:
        make_network: Makes a network with fresh weights from torch's random state.
        settings: Optimiser, learning rate with its schedule, and number of epochs.
        rows: The training split with the high-level features.
        fold: The rows for training and for validation.
        seed: Seed of the initial weights and of the order of the events.
        num_steps: Steps per epoch, from `steps_per_epoch`; the events of a fold are spread evenly over them.
    """
    torch.manual_seed(seed)
    made = make_network()
    network, events = PerceptronEngine([made.scaling, *made.layers]).network, events_of(rows)
    parameters = parameters_to_vector(made.parameters()).detach().numpy()
    gradient, first, second = (np.zeros_like(parameters) for _ in range(3))
    state, constants = (gradient, first, second, np.zeros(1, np.float32)), constants_of(settings)
    curves = Curves([], [], [])
    bounds = step_bounds(len(fold.train), num_steps)
    for epoch in range(settings.epochs):
        order = random_stream(seed, "fold", epoch).permutation(fold.train)
        of_training, of_validation = np.zeros((2, 4))
        rates = _rates(settings, epoch + bounds[1:] / bounds[-1])
        perceptron_epoch(parameters, *state, rates, constants, network, events, order, bounds, of_training)
        perceptron_sums(parameters, network, events, fold.val, of_validation)
        train, val = Sums.of(of_training), Sums.of(of_validation)
        for curve, value in zip(curves, (train.mean_loss, val.mean_loss, val.accuracy), strict=True):
            curve.append(value)
    return curves


def _rates(settings: TrainSettings, epochs_done: NDArray[np.float64]) -> NDArray[np.float64]:
    """The learning rate of each step, by the epochs at its end."""
    if settings.schedule.is_constant:
        return np.full(len(epochs_done), settings.effective_learning_rate)
    return np.array([learning_rate(settings, done) for done in epochs_done.tolist()])
