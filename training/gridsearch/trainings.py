"""Runs the jobs of a search, each with its own result file; finished jobs are not repeated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector

from features.columns import INPUT_COLUMNS
from features.dataset import FeatureDataset
from features.mixing import class_weights
from features.scaling import ColumnStatistics, scaler_json
from hep_core.random_streams import random_stream
from models.networks.hlf import HlfClassifier
from models.networks.hlf_settings import HlfSettings
from models.networks.scaling_layer import Scaler
from training.compiled.engines import PerceptronEngine, row_arrays
from training.compiled.muon import hidden_matrices
from training.compiled.optimizer import optimizer_constants
from training.compiled.perceptron import perceptron_epoch, perceptron_sums
from training.gridsearch.search import Curves, JobResult, Search, load_result
from training.gridsearch.settings import Trial
from training.loop.schedule import learning_rate
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.readers.sharding import step_bounds
from training.settings import OptimizerName, TrainSettings
from training.threads import be_deterministic, use_threads
from training.workloads.gradients import Sums


class Fold(NamedTuple):
    """One division of the training split: numbers of the rows for training and for validation."""

    train: NDArray[np.int64]
    val: NDArray[np.int64]


def make_folds(labels: NDArray[np.int64], num_folds: int, *, seed: int) -> list[Fold]:
    """Divide events into folds for cross-validation, with equal shares of the classes.

    Each fold trains on all events but its validation part. Each event is in one validation part.
    These are the folds of scikit-learn's `StratifiedKFold` with shuffled events. An import of
    scikit-learn would take 70 MB of each Spark task.

    `labels`: (num_rows,) classes of the training split. `num_folds`: number of folds, at least 2.
    `seed`: seed of the search; all trials get the same folds.

    Raises:
        ValueError: A class has fewer events than the number of folds.

    Examples:
        >>> folds = make_folds(np.array([0, 1] * 6), 3, seed=1)
        >>> sorted(np.concatenate([fold.val for fold in folds]).tolist()) == list(range(12))
        True
    """
    smallest_class = int(np.bincount(labels).min())
    if smallest_class < num_folds:
        raise ValueError(f"a class has {smallest_class} events, fewer than the {num_folds} folds")
    fold_of_event = _draw_fold_of_event(labels, num_folds, seed)
    folds: list[Fold] = []
    for fold_number in range(num_folds):
        is_val = fold_of_event == fold_number
        folds.append(Fold(np.flatnonzero(~is_val), np.flatnonzero(is_val)))
    return folds


def _draw_fold_of_event(labels: NDArray[np.int64], num_folds: int, seed: int) -> NDArray[np.int64]:
    """Draw the fold that each event validates, (num_rows,).

    The folds take the events in turn, class by class, so that folds and classes differ by one event
    at most. The events of each class are shuffled.
    """
    generator = np.random.RandomState(seed)
    classes, first_rows = np.unique(labels, return_index=True)
    # The classes come in the order in which they first appear.
    classes = classes[np.argsort(first_rows)]
    fold_of_event = np.empty(len(labels), dtype=np.int64)
    num_dealt = 0
    for label in classes:
        is_of_class = labels == label
        num_events = int(np.count_nonzero(is_of_class))
        folds_in_turn = np.arange(num_dealt, num_dealt + num_events) % num_folds
        folds_of_class = np.sort(folds_in_turn)
        generator.shuffle(folds_of_class)
        fold_of_event[is_of_class] = folds_of_class
        num_dealt += num_events
    return fold_of_event


def steps_per_epoch(folds: Sequence[Fold], batch_size: int) -> int:
    """Return the number of steps per epoch for all folds: as many as the largest one needs."""
    largest_fold = max(len(fold.train) for fold in folds)
    return math.ceil(largest_fold / batch_size)


def train_on_fold(
    make_network: Callable[[], HlfClassifier],
    settings: TrainSettings,
    rows: Rows,
    fold: Fold,
    *,
    seed: int,
    num_steps: int,
) -> Curves:
    """Train one network on one fold by compiled code, and validate it after each epoch.

    Args:
        make_network: Makes a network with fresh weights from torch's random state.
        settings: Optimiser, schedule and number of epochs.
        rows: The rows of the training split.
        fold: Numbers of the rows to train and to validate on.
        seed: Of the weights and of the order of the events.
        num_steps: Steps per epoch, from `steps_per_epoch`; the events of a fold are spread evenly
            over them.
    """
    torch.manual_seed(seed)
    classifier = make_network()
    network = PerceptronEngine([classifier.scaling, *classifier.layers]).network
    events = row_arrays(rows)
    parameters = parameters_to_vector(classifier.parameters()).detach().numpy()
    gradient = np.zeros_like(parameters)
    first_moment = np.zeros_like(parameters)
    second_moment = np.zeros_like(parameters)
    adam_step = np.zeros(1, np.float32)
    constants = optimizer_constants(settings)
    matrices = np.empty((0, 3), np.int64)
    if settings.optimizer is OptimizerName.MUON:
        matrices = hidden_matrices([parameter.shape for parameter in classifier.parameters()])

    curves = Curves([], [], [])
    bounds = step_bounds(len(fold.train), num_steps)
    for epoch in range(settings.epochs):
        order = random_stream(seed, "fold", epoch).permutation(fold.train)
        # The rate of a step depends on the epochs after it, in fractions.
        epochs_at_steps = epoch + bounds[1:] / bounds[-1]
        rates = np.array([learning_rate(settings, epochs) for epochs in epochs_at_steps.tolist()])
        train_sums = np.zeros(4)
        perceptron_epoch(
            parameters,
            gradient,
            first_moment,
            second_moment,
            adam_step,
            rates,
            constants,
            matrices,
            network,
            events,
            order,
            bounds,
            train_sums,
        )
        val_sums = np.zeros(4)
        perceptron_sums(parameters, network, events, fold.val, val_sums)
        validation = Sums.from_array(val_sums)
        curves.train_loss.append(Sums.from_array(train_sums).mean_loss)
        curves.val_loss.append(validation.mean_loss)
        curves.val_accuracy.append(validation.accuracy)
    return curves


def run_job(search: Search, trial: Trial, folder: Path) -> JobResult:
    """Train the networks of a trial on all folds unless this is done, and save the result.

    The failure of a job is a result too, so that other jobs continue.

    `folder`: folder of the results; every task must reach it.

    Raises:
        DamagedOutputError, FeatureError, OSError: The features cannot be read. All trials read the
            same files, so this is no result of one trial.
    """
    earlier_result = load_result(folder, trial)
    if earlier_result is not None:
        return earlier_result
    _load(search.dataset, search.train.seed)
    # The clock starts after the data are loaded. A process loads them once, and its first training
    # would seem slow.
    started = time.perf_counter()
    num_parameters, folds, error = 0, list[Curves](), ""
    try:
        num_parameters, folds = _train(search, trial)
    except Exception as problem:  # noqa: BLE001 - the table shows any error, and the other jobs continue
        error = f"{type(problem).__name__}: {problem}"
    result = JobResult(trial, num_parameters, folds, time.perf_counter() - started, error)
    result.save(folder)
    return result


def _train(search: Search, trial: Trial) -> tuple[int, list[Curves]]:
    """Train the networks of a trial; returns their number of parameters, and the curves per fold.

    In each fold the features are scaled and the classes balanced by its training rows only.
    """
    # The rate of a trial is that of a step, however many workers take the step together later.
    train = search.train.model_copy(
        update={"workers": 1, "learning_rate": trial.learning_rate, "epochs": trial.epochs}
    )
    use_threads(train.threads)
    be_deterministic()
    rows, classes = _load(search.dataset, train.seed)
    folds = make_folds(rows.labels.numpy(), search.settings.folds, seed=train.seed)
    num_steps = steps_per_epoch(folds, trial.batch_size)
    network_settings = HlfSettings(hidden=list(trial.hidden))

    curves: list[Curves] = []
    num_parameters = 0
    for fold_number, fold in enumerate(folds):
        scalers = {"hlf": fit_scaler(rows, fold)}
        make_network = partial(HlfClassifier, network_settings, scalers, len(classes))
        num_parameters = sum(parameter.numel() for parameter in make_network().parameters())
        fold_curves = train_on_fold(
            make_network,
            train,
            balance_classes(rows, fold, classes),
            fold,
            # Every fold has a seed of its own, the same for all settings.
            seed=train.seed + fold_number,
            num_steps=num_steps,
        )
        curves.append(fold_curves)
    return num_parameters, curves


def fit_scaler(rows: Rows, fold: Fold) -> Scaler:
    """Compute means and standard deviations of the high-level features over the training rows."""
    column = INPUT_COLUMNS["hlf"]
    statistics = ColumnStatistics.from_rows(rows.inputs[0].numpy()[fold.train], column.log_above)
    return Scaler.from_json(scaler_json(statistics, column))


def balance_classes(rows: Rows, fold: Fold, classes: list[str]) -> Rows:
    """Return rows with new weights, whose sums over the fold's training rows are equal by class."""
    labels = rows.labels.numpy()
    weights = rows.weights.numpy()
    factors = class_weights(labels[fold.train], weights[fold.train], classes)
    row_factors = torch.from_numpy(factors[labels]).to(rows.weights.dtype)
    return rows._replace(weights=rows.weights * row_factors)


@lru_cache(maxsize=1)
def _load(dataset: Path, seed: int) -> tuple[Rows, list[str]]:
    """Load the high-level features of the training split, and the names of the classes.

    The result is cached, so that a process loads them once.
    """
    features = FeatureDataset.load(dataset)
    return MemoryRows.load(features, "train", ["hlf"], seed=seed).rows, features.classes
