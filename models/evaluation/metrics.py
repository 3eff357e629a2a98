"""Metrics with event weights: accuracy, confusion matrix, area under a ROC curve. Their errors come from replicas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from models.errors import UndefinedMetricError

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def balanced(labels: Labels, weights: Floats, num_classes: int) -> Floats:
    """Weights with which every class adds up to 1.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0.

    Examples:
        >>> balanced(np.array([0, 0, 1]), np.array([1.0, 3.0, 7.0]), 2).tolist()
        [0.25, 0.75, 1.0]
    """
    sums = np.bincount(labels, weights, minlength=num_classes)
    if not (sums > 0).all():
        raise UndefinedMetricError(_no_weight(f"the classes {np.flatnonzero(~(sums > 0)).tolist()}"))
    return np.asarray(weights / sums[labels], dtype=np.float64)


def within_classes(labels: Labels, weights: Floats) -> Floats:
    """Weights that add up to the number of events in every class; a class of total weight 0 or less stays as it is.

    Examples:
        >>> within_classes(np.array([0, 0, 1]), np.array([3e-6, 1e-6, 50.0])).tolist()
        [1.5, 0.5, 1.0]
    """
    sums = np.bincount(labels, weights)
    factors = np.divide(np.bincount(labels), sums, out=np.ones(len(sums)), where=sums > 0)
    return weights * factors[labels]


def accuracy(labels: Labels, probabilities: Floats, weights: Floats) -> float:
    """Weighted share of events whose most probable class is their true class.

    Args:
        labels: (num_events,) true classes.
        probabilities: (num_events, num_classes).
        weights: (num_events,) event weights; some may be negative.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.
    """
    if not weights.sum() > 0:
        raise UndefinedMetricError(_no_weight("all events together"))
    return float(np.average(probabilities.argmax(axis=1) == labels, weights=weights))


def confusion_matrix(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Share of each true class (row) that is predicted as each class (column); rows add up to 1.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0.
    """
    num_classes = probabilities.shape[1]
    shares = np.zeros((num_classes, num_classes))
    np.add.at(shares, (labels, probabilities.argmax(axis=1)), balanced(labels, weights, num_classes))
    return shares


def area_under_curve(is_signal: NDArray[np.bool_], scores: Floats, weights: Floats) -> float:
    """Area under the ROC curve: the weighted share of pairs of a signal and a background event in the right order.

    Ties count half. This holds for negative weights too.

    Args:
        is_signal: (num_events,) whether an event is signal.
        scores: (num_events,); higher is more like signal.
        weights: (num_events,) event weights.

    Raises:
        UndefinedMetricError: The weights of signal or background do not add up to more than 0.
    """
    for name, chosen in (("the signal", is_signal), ("the background", ~is_signal)):
        if not weights[chosen].sum() > 0:
            raise UndefinedMetricError(_no_weight(name))
    # Keep all points: with negative weights the curve is not monotonic, and each point counts in the area.
    background, signal, _ = roc_curve(is_signal, scores, sample_weight=weights, drop_intermediate=False)
    return float((np.diff(background) * (signal[1:] + signal[:-1]) / 2).sum())


def _no_weight(what: str) -> str:
    return (
        f"{what} cannot be evaluated: there are no such events, or their weights add up to 0 or less. "
        f"Add files, or check Event.Weight in them."
    )
