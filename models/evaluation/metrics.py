"""Metrics of an evaluation, with event weights: accuracy, confusion matrix, ROC curves and their areas."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from models.errors import UndefinedMetricError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


class Estimate(NamedTuple):
    """A number with its statistical error."""

    value: float
    error: float


class RocCurve(NamedTuple):
    """ROC curve of one class against all others together."""

    signal_efficiency: Floats
    """(num_points,) true positive rate, rising from 0 to 1."""
    background_efficiency: Floats
    """(num_points,) false positive rate at the same thresholds."""


def effective_size(weights: Floats) -> float:
    """Number of unweighted events with the same relative error: (sum w)^2 / sum w^2.

    Examples:
        >>> effective_size(np.array([1.0, 1.0, 1.0]))
        3.0
    """
    return float(weights.sum() ** 2 / np.square(weights).sum())


def within_classes(labels: Labels, weights: Floats) -> Floats:
    """Weights that add up to the number of events in every class; a class of total weight 0 or less stays as it is.

    Examples:
        >>> within_classes(np.array([0, 0, 1]), np.array([3e-6, 1e-6, 50.0])).tolist()
        [1.5, 0.5, 1.0]
    """
    sums = np.bincount(labels, weights)
    factors = np.divide(np.bincount(labels), sums, out=np.ones(len(sums)), where=sums > 0)
    return weights * factors[labels]


def accuracy(labels: Labels, probabilities: Floats, weights: Floats) -> Estimate:
    """Weighted share of events whose most probable class is their true class.

    The error is half the width of Wilson's one-sigma interval with the effective number of events. Unlike the usual
    binomial error it stays above 0 at an accuracy of 1.

    Args:
        labels: (num_events,) true classes.
        probabilities: (num_events, num_classes).
        weights: (num_events,) event weights; some may be negative.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.
    """
    if not weights.sum() > 0:
        raise UndefinedMetricError(_no_weight("all events together"))
    correct = probabilities.argmax(axis=1) == labels
    value = float(np.average(correct, weights=weights))
    size = effective_size(weights)
    return Estimate(value, math.sqrt(max(value * (1 - value), 0.0) / size + 0.25 / size**2) / (1 + 1 / size))


def confusion_matrix(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Share of each true class (row) that is predicted as each class (column); rows add up to 1.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0.
    """
    num_classes = probabilities.shape[1]
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, (labels, probabilities.argmax(axis=1)), weights)
    totals = counts.sum(axis=1, keepdims=True)
    if (totals <= 0).any():
        missing = np.flatnonzero(totals[:, 0] <= 0).tolist()
        raise UndefinedMetricError(_no_weight(f"the classes {missing}"))
    return np.asarray(counts / totals, dtype=np.float64)


def roc_one_vs_rest(labels: Labels, scores: Floats, weights: Floats, *, signal: int) -> RocCurve:
    """ROC curve of one class against the rest.

    Args:
        labels: (num_events,) true classes.
        scores: (num_events,) probability of the signal class.
        weights: (num_events,) event weights.
        signal: The signal class.

    Raises:
        UndefinedMetricError: The weights of signal or background do not add up to more than 0.
    """
    _refuse_one_class(labels, weights, signal)
    # Keep all points: with negative weights the curve is not monotonic, and each point counts in the area.
    false_positive, true_positive, _ = roc_curve(
        labels == signal, scores, sample_weight=weights, drop_intermediate=False
    )
    return RocCurve(true_positive, false_positive)


def auc_one_vs_rest(labels: Labels, scores: Floats, weights: Floats, *, signal: int) -> Estimate:
    """Area under the ROC curve of one class against the rest, with the error of Hanley and McNeil (1982).

    Arguments and exceptions are those of `roc_one_vs_rest`. The area is the weighted share of pairs of a signal and a
    background event in the right order; ties count half. This holds for negative weights too.
    """
    curve = roc_one_vs_rest(labels, scores, weights, signal=signal)
    is_signal = labels == signal
    signal_there = curve.signal_efficiency
    area = float((np.diff(curve.background_efficiency) * (signal_there[1:] + signal_there[:-1]) / 2).sum())
    num_signal, num_background = effective_size(weights[is_signal]), effective_size(weights[~is_signal])
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (num_signal - 1) * (q1 - area**2) + (num_background - 1) * (q2 - area**2)
    return Estimate(area, math.sqrt(max(variance, 0.0) / (num_signal * num_background)))


def _refuse_one_class(labels: Labels, weights: Floats, signal: int) -> None:
    is_signal = labels == signal
    for name, chosen in ((f"class {signal}", is_signal), (f"the classes other than {signal}", ~is_signal)):
        if not weights[chosen].sum() > 0:
            raise UndefinedMetricError(_no_weight(name))


def _no_weight(what: str) -> str:
    return (
        f"{what} cannot be evaluated: there are no such events, or their weights add up to 0 or less. "
        f"Add files, or check Event.Weight in them."
    )
