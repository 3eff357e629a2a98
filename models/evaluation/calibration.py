"""Calibration: observed shares of a class against its predicted probabilities, and what a perfect model would show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.evaluation.intervals import Efficiency, Floats, Labels, WeightSums, efficiency

#: Bins between probabilities 0 and 1.
NUM_BINS: Final = 10
#: Number of events whose labels are drawn, over all draws.
_MOST_DRAWN: Final = 10_000_000
_MOST_DRAWS: Final = 400


class CalibrationBin(NamedTuple):
    """Events with predicted probabilities in one bin."""

    low: float
    high: float
    mean_predicted: float
    observed: Efficiency
    """Share of the events that belong to the class."""
    num_events: int
    weight: float
    """Sum of the event weights."""


class ExpectedError(NamedTuple):
    """Calibration error of a perfect model with the same predictions."""

    mean: float
    p_value: float
    """Probability that a perfect model has at least the observed error."""


def calibration(is_class: NDArray[np.bool_], predicted: Floats, weights: Floats) -> list[CalibrationBin]:
    """Observed share of a class in bins of its predicted probability: the reliability curve.

    The bins are equally wide; a value on an edge belongs to the bin below it, as in scikit-learn's `calibration_curve`.
    Bins whose weights do not add up to more than 0 are left out. With negative weights a mean may lie outside its bin.

    Args:
        is_class: (num_events,) whether the event is of the class.
        predicted: (num_events,) predicted probability of the class, from 0 to 1.
        weights: (num_events,) event weights.

    Examples:
        >>> (found,) = calibration(np.array([True, False]), np.array([0.72, 0.78]), np.ones(2))
        >>> found.low, round(found.mean_predicted, 3), found.observed.value
        (0.7, 0.75, 0.5)
    """
    edges = np.arange(NUM_BINS + 1) / NUM_BINS
    place = np.searchsorted(edges[1:-1], predicted)
    found = []
    for index in range(NUM_BINS):
        inside = place == index
        total = float(weights[inside].sum())
        if WeightSums.of(weights[inside]).is_positive:
            mean = float((weights[inside] * predicted[inside]).sum() / total)
            observed = efficiency(is_class[inside], weights[inside])
            bounds = float(edges[index]), float(edges[index + 1])
            found.append(CalibrationBin(*bounds, mean, observed, int(inside.sum()), total))
    return found


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Expected calibration error: mean distance of observed and predicted share, weighted by the bins' event weights.

    Naeini, Cooper and Hauskrecht (2015). It depends on the bins. Even for a perfect model it is above 0; see
    `expected_calibration_errors`.

    Args:
        bins: From `calibration`, at least one.
    """
    total = sum(each.weight for each in bins)
    return sum(each.weight * abs(each.observed.value - each.mean_predicted) for each in bins) / total


def expected_calibration_errors(
    labels: Labels, probabilities: Floats, weights: Floats, observed: Sequence[float], *, generator: np.random.Generator
) -> list[ExpectedError]:
    """What a perfect model with these predictions would show, for each class.

    The labels are drawn from the predicted probabilities, many times. The probabilities refer to classes in equal
    parts; the drawn labels have the classes in the parts of the sample, and then get weights of equal parts again.

    Args:
        labels: (num_events,) true classes, for their parts only.
        probabilities: (num_events, num_classes).
        weights: (num_events,) event weights.
        observed: (num_classes,) calibration errors of the model.
        generator: Source of the labels.
    """
    num_events, num_classes = probabilities.shape
    of_sample = probabilities * np.bincount(labels, weights, minlength=num_classes)
    limits = np.cumsum(of_sample / of_sample.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    place = np.searchsorted(np.arange(1, NUM_BINS) / NUM_BINS, probabilities)
    errors = np.empty((min(_MOST_DRAWS, max(50, _MOST_DRAWN // num_events)), num_classes))
    for draw in range(len(errors)):
        drawn = (generator.random((num_events, 1)) > limits).sum(axis=1)
        sums = np.bincount(drawn, weights, minlength=num_classes)
        share = weights / np.where(sums > 0, sums, np.inf)[drawn] / num_classes
        for index in range(num_classes):
            apart = share * ((drawn == index) - probabilities[:, index])
            errors[draw, index] = np.abs(np.bincount(place[:, index], apart)).sum()
    # The model counts as one of the draws: no finite number of them excludes a perfect model.
    p_values = (1 + (errors >= observed).sum(axis=0)) / (1 + len(errors))
    return list(map(ExpectedError, errors.mean(axis=0).tolist(), p_values.tolist()))
