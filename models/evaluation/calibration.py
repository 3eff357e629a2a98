"""Calibration: observed shares of a class against its predicted probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.evaluation.intervals import Floats, Labels, WeightSums, efficiency

#: Bins between probabilities 0 and 1.
NUM_BINS: Final = 10
#: Highest number of events whose labels are drawn, summed over all draws; it bounds the time.
_MOST_DRAWN: Final = 10_000_000
#: Limits of the number of draws of a perfect model, whatever the number of events.
_FEWEST_DRAWS: Final = 50
_MOST_DRAWS: Final = 400


def calibration(
    is_class: NDArray[np.bool_], predicted: Floats, weights: Floats
) -> list[dict[str, Any]]:
    """Compare observed and predicted shares of a class in bins of its predicted probability.

    A model is calibrated if a share p of the events with probability p is of the class. The bins
    are equally wide; a value on an edge belongs to the bin below it, as in scikit-learn's
    `calibration_curve`. Bins whose weights do not add up to more than 0 are left out. With negative
    weights a mean may lie outside its bin.

    Args:
        is_class: (num_events,) whether each event is truly of the class.
        predicted: (num_events,) probability of the class.
        weights: (num_events,) event weights.

    Returns:
        One dictionary for each bin that is left, ready for JSON.
    """
    edges = np.arange(NUM_BINS + 1) / NUM_BINS
    # The outer edges are left out, so 0 belongs to the first bin, and 1 to the last.
    bins = np.searchsorted(edges[1:-1], predicted)
    filled_bins = []
    for index in range(NUM_BINS):
        in_bin = bins == index
        bin_weights = weights[in_bin]
        if not WeightSums.of(bin_weights).is_positive:
            continue
        total = float(bin_weights.sum())
        sum_predicted = (bin_weights * predicted[in_bin]).sum()
        observed = efficiency(is_class[in_bin], bin_weights)
        filled_bin = {
            "low": float(edges[index]),
            "high": float(edges[index + 1]),
            "mean_predicted": float(sum_predicted / total),
            "observed": observed._asdict(),
            "num_events": int(in_bin.sum()),
            "weight": total,
        }
        filled_bins.append(filled_bin)
    return filled_bins


def calibration_error(bins: Sequence[Mapping[str, Any]]) -> float:
    """Compute the expected calibration error of a class from the bins of `calibration`.

    It is the weighted mean distance of observed and predicted share over the bins (Naeini, Cooper
    and Hauskrecht 2015). It depends on the choice of bins. Even for a perfect model it is above 0,
    since observed shares fluctuate; see `expected_calibration_errors`.
    """
    total, distance = 0.0, 0.0
    for bin_ in bins:
        weight = bin_["weight"]
        observed = bin_["observed"]["value"]
        total += weight
        distance += weight * abs(observed - bin_["mean_predicted"])
    return float(distance / total)


def expected_calibration_errors(
    labels: Labels,
    probabilities: Floats,
    weights: Floats,
    observed: Sequence[float],
    *,
    generator: np.random.Generator,
) -> list[dict[str, float]]:
    """Simulate the calibration errors of a perfect model, for comparison with the observed ones.

    A perfect model is simulated by drawing the label of each event from its predicted
    probabilities, 50 to 400 times. The probabilities refer to classes in equal parts, so they are
    first rescaled to the parts of the classes in the sample. After each draw the classes get equal
    total weight again.

    Args:
        labels: (num_events,) true classes.
        probabilities: (num_events, num_classes) predicted probabilities.
        weights: (num_events,) event weights.
        observed: (num_classes,) calibration errors of the model.
        generator: Source of the random labels.

    Returns:
        For each class `expected`, the mean error of a perfect model, and `p_value`, the share of
        the draws whose error is at least the observed one.
    """
    num_events, num_classes = probabilities.shape
    # The parts of the classes in the sample scale their probabilities; the sum is not yet 1.
    weight_of_class = np.bincount(labels, weights, minlength=num_classes)
    in_sample = probabilities * weight_of_class
    sums_over_classes = in_sample.sum(axis=1, keepdims=True)
    # A label is drawn as the number of these cumulative probabilities below a uniform random
    # number.
    cumulative = np.cumsum(in_sample / sums_over_classes, axis=1)
    limits = cumulative[:, :-1]
    # Each probability has a bin, (num_events, num_classes), as in `calibration`.
    inner_edges = np.arange(1, NUM_BINS) / NUM_BINS
    bins = np.searchsorted(inner_edges, probabilities)
    num_affordable = max(_FEWEST_DRAWS, _MOST_DRAWN // num_events)
    num_draws = min(_MOST_DRAWS, num_affordable)
    errors = np.empty((num_draws, num_classes))
    for draw in range(num_draws):
        random_numbers = generator.random((num_events, 1))
        drawn_labels = (random_numbers > limits).sum(axis=1)
        # Each drawn class gets the total weight 1 / num_classes; a class that is not drawn gets
        # none.
        drawn_weight = np.bincount(drawn_labels, weights, minlength=num_classes)
        divisor = np.where(drawn_weight > 0, drawn_weight, np.inf)
        event_shares = weights / divisor[drawn_labels] / num_classes
        for label in range(num_classes):
            is_class = drawn_labels == label
            # Summed over a bin, this is weight x (observed share - mean prediction).
            differences = event_shares * (is_class - probabilities[:, label])
            bin_differences = np.bincount(bins[:, label], differences)
            errors[draw, label] = np.abs(bin_differences).sum()
    means = errors.mean(axis=0)
    num_at_least_observed = (errors >= observed).sum(axis=0)
    # The model counts as one of the draws: no finite number of them excludes a perfect model.
    p_values = (1 + num_at_least_observed) / (1 + num_draws)
    return [
        {"expected": mean, "p_value": p_value}
        for mean, p_value in zip(means.tolist(), p_values.tolist(), strict=True)
    ]
