"""Calibration: observed shares of a class against its predicted probabilities, and what a perfect model would show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.evaluation.intervals import Floats, Labels, WeightSums, efficiency

#: Bins between probabilities 0 and 1.
NUM_BINS: Final = 10
#: Number of events whose labels are drawn, over all draws.
_MOST_DRAWN: Final = 10_000_000
_MOST_DRAWS: Final = 400


def calibration(
    is_class: NDArray[np.bool_], predicted: Floats, weights: Floats
) -> list[dict[str, Any]]:
    """Observed share of a class in bins of its predicted probability, for JSON; arguments (num_events,) each.

    The bins are equally wide; a value on an edge belongs to the bin below it, as in scikit-learn's `calibration_curve`.
    Bins whose weights do not add up to more than 0 are left out. With negative weights a mean may lie outside its bin.
    """
    edges = np.arange(NUM_BINS + 1) / NUM_BINS
    place = np.searchsorted(edges[1:-1], predicted)
    found = []
    for index in range(NUM_BINS):
        inside = place == index
        if WeightSums.of(weights[inside]).is_positive:
            total = float(weights[inside].sum())
            found.append(
                {
                    "low": float(edges[index]),
                    "high": float(edges[index + 1]),
                    "mean_predicted": float((weights[inside] * predicted[inside]).sum() / total),
                    "observed": efficiency(is_class[inside], weights[inside])._asdict(),
                    "num_events": int(inside.sum()),
                    "weight": total,
                }
            )
    return found


def calibration_error(bins: Sequence[Mapping[str, Any]]) -> float:
    """Expected calibration error: mean distance of observed and predicted share, weighted by the bins' event weights.

    Naeini, Cooper and Hauskrecht (2015). It depends on the bins. Even for a perfect model it is above 0; see
    `expected_calibration_errors`.
    """
    total = sum(each["weight"] for each in bins)
    distances = (
        each["weight"] * abs(each["observed"]["value"] - each["mean_predicted"]) for each in bins
    )
    return float(sum(distances) / total)


def expected_calibration_errors(
    labels: Labels,
    probabilities: Floats,
    weights: Floats,
    observed: Sequence[float],
    *,
    generator: np.random.Generator,
) -> list[dict[str, float]]:
    """Mean calibration error of a perfect model with these predictions, and the p-value of those observed, by class.

    The labels are drawn from the (num_events, num_classes) probabilities, many times. These refer to classes in equal
    parts; the drawn labels have the classes in the parts of the sample, and then get weights of equal parts again.
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
    means = errors.mean(axis=0).tolist()
    return [
        {"expected": mean, "p_value": value}
        for mean, value in zip(means, p_values.tolist(), strict=True)
    ]
