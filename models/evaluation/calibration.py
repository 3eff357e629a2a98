"""Calibration: observed shares of a class against its predicted probabilities."""

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
_FEWEST_DRAWS: Final = 50
_MOST_DRAWS: Final = 400


def calibration(
    is_class: NDArray[np.bool_], predicted: Floats, weights: Floats
) -> list[dict[str, Any]]:
    """Observed share of a class in bins of its predicted probability, for JSON.

    The arguments are (num_events,) each. The bins are equally wide; a value on an edge belongs to
    the bin below it, as in scikit-learn's `calibration_curve`. Bins whose weights do not add up to
    more than 0 are left out. With negative weights a mean may lie outside its bin.
    """
    edges = np.arange(NUM_BINS + 1) / NUM_BINS
    bins = np.searchsorted(edges[1:-1], predicted)
    filled = []
    for index in range(NUM_BINS):
        in_bin = bins == index
        bin_weights = weights[in_bin]
        if not WeightSums.of(bin_weights).is_positive:
            continue
        total = float(bin_weights.sum())
        filled.append(
            {
                "low": float(edges[index]),
                "high": float(edges[index + 1]),
                "mean_predicted": float((bin_weights * predicted[in_bin]).sum() / total),
                "observed": efficiency(is_class[in_bin], bin_weights)._asdict(),
                "num_events": int(in_bin.sum()),
                "weight": total,
            }
        )
    return filled


def calibration_error(bins: Sequence[Mapping[str, Any]]) -> float:
    """Expected calibration error: mean distance of observed and predicted share, by weight.

    Naeini, Cooper and Hauskrecht (2015). It depends on the bins. Even for a perfect model it is
    above 0; see `expected_calibration_errors`.
    """
    total, distance = 0.0, 0.0
    for bin_ in bins:
        total += bin_["weight"]
        distance += bin_["weight"] * abs(bin_["observed"]["value"] - bin_["mean_predicted"])
    return float(distance / total)


def expected_calibration_errors(
    labels: Labels,
    probabilities: Floats,
    weights: Floats,
    observed: Sequence[float],
    *,
    generator: np.random.Generator,
) -> list[dict[str, float]]:
    """Mean calibration error of a perfect model, and the p-value of the observed one, by class.

    The labels are drawn from the (num_events, num_classes) probabilities, many times. These refer
    to classes in equal parts. The drawn labels have the classes in the parts of the sample, and
    then get weights of equal parts again.
    """
    num_events, num_classes = probabilities.shape
    in_sample = probabilities * np.bincount(labels, weights, minlength=num_classes)
    limits = np.cumsum(in_sample / in_sample.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    bins = np.searchsorted(np.arange(1, NUM_BINS) / NUM_BINS, probabilities)
    num_draws = min(_MOST_DRAWS, max(_FEWEST_DRAWS, _MOST_DRAWN // num_events))
    errors = np.empty((num_draws, num_classes))
    for draw in range(num_draws):
        drawn = (generator.random((num_events, 1)) > limits).sum(axis=1)
        sums = np.bincount(drawn, weights, minlength=num_classes)
        share = weights / np.where(sums > 0, sums, np.inf)[drawn] / num_classes
        for label in range(num_classes):
            difference = share * ((drawn == label) - probabilities[:, label])
            errors[draw, label] = np.abs(np.bincount(bins[:, label], difference)).sum()
    # The model counts as one of the draws: no finite number of them excludes a perfect model.
    p_values = (1 + (errors >= observed).sum(axis=0)) / (1 + num_draws)
    return [
        {"expected": mean, "p_value": p_value}
        for mean, p_value in zip(errors.mean(axis=0).tolist(), p_values.tolist(), strict=True)
    ]
