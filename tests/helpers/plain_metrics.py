"""Accuracy and area under a ROC curve, one number each: what the replicas of the evaluation are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from models.errors import UndefinedMetricError
from models.evaluation.efficiencies import Floats, Labels


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
        raise UndefinedMetricError(_NO_WEIGHT.format("all events together"))
    return float(np.average(probabilities.argmax(axis=1) == labels, weights=weights))


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
            raise UndefinedMetricError(_NO_WEIGHT.format(name))
    # Keep all points: with negative weights the curve is not monotonic, and each point counts in the area.
    background, signal, _ = roc_curve(is_signal, scores, sample_weight=weights, drop_intermediate=False)
    return float((np.diff(background) * (signal[1:] + signal[:-1]) / 2).sum())


_NO_WEIGHT = "{} cannot be evaluated: there are no such events, or their weights add up to 0 or less."
