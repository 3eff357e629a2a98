"""Compares the losses of two models on the same events."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.errors import UndefinedMetricError
from models.evaluation.metrics import Estimate

Floats = NDArray[np.float64]

#: Lower limit of probabilities in the loss, so that one event cannot dominate it.
_LOWEST: Final = 1e-6


def improvement(labels: NDArray[np.int64], weights: Floats, before: Floats, after: Floats) -> Estimate:
    """Decrease of the mean cross-entropy with a new model, and its standard error.

    Both models see the same events. So the error is the error of the mean of the differences per event, which is much
    smaller than the errors of the two means. All classes have the same total weight, as in the training loss.

    Args:
        labels: (num_events,) true classes.
        weights: (num_events,) event weights; some may be negative.
        before: (num_events, num_classes) probabilities of the old model.
        after: (num_events, num_classes) probabilities of the new model.

    Raises:
        UndefinedMetricError: A probability is not finite, or the weights of a class add up to 0 or less.

    Examples:
        >>> labels, old = np.array([0, 1]), np.array([[0.5, 0.5], [0.5, 0.5]])
        >>> found = improvement(labels, np.ones(2), old, np.array([[1.0, 0.0], [0.0, 1.0]]))
        >>> round(found.value, 3), found.error
        (0.693, 0.0)
    """
    if not (np.isfinite(before).all() and np.isfinite(after).all()):
        raise UndefinedMetricError("a probability is not finite; the model or its input is damaged")
    sums = np.bincount(labels, weights, minlength=before.shape[1])
    present = np.bincount(labels, minlength=before.shape[1]) > 0
    if (sums[present] <= 0).any():
        raise UndefinedMetricError("the event weights of a class add up to 0 or less: no loss can be computed")
    share = weights / (sums[labels] * present.sum())
    rows = np.arange(len(labels))
    old, new = (np.log(np.maximum(each[rows, labels], _LOWEST)) for each in (before, after))
    gain = new - old
    mean = float((share * gain).sum())
    return Estimate(mean, math.sqrt(float((np.square(share) * np.square(gain - mean)).sum())))
