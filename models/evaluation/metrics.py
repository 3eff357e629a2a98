"""Metrics with event weights: weights that balance classes, and the confusion matrix."""

from __future__ import annotations

import numpy as np

from models.errors import UndefinedMetricError
from models.evaluation.efficiencies import Floats, Labels


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
        raise UndefinedMetricError(
            f"the classes {np.flatnonzero(~(sums > 0)).tolist()} cannot be evaluated: there are no such events, or "
            f"their weights add up to 0 or less. Add files, or check Event.Weight in them."
        )
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


def confusion_matrix(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Share of each true class (row) that is predicted as each class (column); rows add up to 1.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0.
    """
    num_classes = probabilities.shape[1]
    shares = np.zeros((num_classes, num_classes))
    np.add.at(shares, (labels, probabilities.argmax(axis=1)), balanced(labels, weights, num_classes))
    return shares
