"""Predictions of one model as arrays, and weights of events within classes and samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hep_core.weight_sums import are_positive
from models.evaluation.intervals import Floats, Labels, WeightSums
from models.prediction import column_array

#: Highest number of different weights that a description lists.
_MOST_LISTED: Final = 5


def balanced(labels: Labels, weights: Floats, num_classes: int) -> Floats:
    """Scale (num_events,) weights so that every class adds up to 1.

    The weights of every class have a sum above 0 before.

    Examples:
        >>> balanced(np.array([0, 0, 1]), np.array([1.0, 3.0, 7.0]), 2).tolist()
        [0.25, 0.75, 1.0]
    """
    sums = np.bincount(labels, weights, minlength=num_classes)
    return np.asarray(weights / sums[labels], dtype=np.float64)


def within_classes(labels: Labels, weights: Floats) -> Floats:
    """Scale weights so that every class adds up to its number of events.

    A class of total weight 0 or less stays as it is.

    Examples:
        >>> within_classes(np.array([0, 0, 1]), np.array([3e-6, 1e-6, 50.0])).tolist()
        [1.5, 0.5, 1.0]
    """
    num_events = np.bincount(labels)
    sums = np.bincount(labels, weights)
    squares = np.bincount(labels, np.square(weights))
    is_positive = are_positive(sums, squares)
    # The factor of each class is number of events / sum of weights.
    unchanged = np.ones(len(sums))
    factors = np.divide(num_events, sums, out=unchanged, where=is_positive)
    return weights * factors[labels]


def joined_samples(labels: Labels, samples: NDArray[np.str_], weights: Floats) -> NDArray[np.str_]:
    """Rename the samples whose weights add up to 0 or less to another sample of their class.

    They join the sample of the most events, of those above 0. If these together are not above 0,
    all samples of the class are one. Factors above 0, common to the samples that are joined, change
    nothing: the weights that `mixing_factors` makes give the same names. The result is a new
    (num_events,) array.

    Examples:
        >>> samples, weights = np.array(["a", "a", "b"]), np.array([1.0, 1.0, -1.0])
        >>> joined_samples(np.zeros(3, int), samples, weights).tolist()
        ['a', 'a', 'a']
    """
    joined = samples.copy()
    for in_class in _class_masks(labels):
        rows = np.flatnonzero(in_class)
        names, index, counts = np.unique(samples[rows], return_inverse=True, return_counts=True)
        class_weights = weights[rows]
        sums = np.bincount(index, class_weights)
        squares = np.bincount(index, np.square(class_weights))
        is_positive = are_positive(sums, squares)
        if is_positive.all():
            continue
        largest = np.where(is_positive, counts, 0).argmax()
        joins = ~is_positive
        joins[largest] = True
        joined_weights = class_weights[joins[index]]
        if not WeightSums.of(joined_weights).is_positive:
            joins[:] = True
        joined_rows = rows[joins[index]]
        joined[joined_rows] = names[largest]
    return joined


def mixing_factors(
    labels: Labels, samples: NDArray[np.str_], weights: Floats, rates: Mapping[str, float] | None
) -> Floats:
    """Compute factors of the weights that mix the samples of a class in proportion to their rates.

    The factor of a sample is rate / sum of weights. Without known rates above 0, or with one sample
    in a class, it is 1. A sample that `joined_samples` joins to another brings its rate along.

    Examples:
        >>> samples, rates = np.array(["a", "a", "b"]), {"a": 6.0, "b": 1.0}
        >>> mixing_factors(np.zeros(3, int), samples, np.ones(3), rates).tolist()
        [3.0, 3.0, 1.0]
    """
    factors = np.ones(len(labels))
    if rates is None:
        return factors
    joined = joined_samples(labels, samples, weights)
    for in_class in _class_masks(labels):
        names, index = np.unique(joined[in_class], return_inverse=True)
        if len(names) == 1:
            continue
        # Each original sample adds its rate to the sample that it belongs to after joining.
        joined_rates = dict.fromkeys(names, 0.0)
        joined_names = dict(zip(samples[in_class], joined[in_class], strict=True))
        for sample, name in joined_names.items():
            joined_rates[name] += rates[sample]
        if sum(joined_rates.values()) <= 0:
            continue
        sums = np.bincount(index, weights[in_class])
        # Rates and sums are both in the order of `names`, and `index` gives the name of each event.
        rates_of_names = np.array(list(joined_rates.values()))
        factors_of_names = rates_of_names / sums
        factors[in_class] = factors_of_names[index]
    return factors


def _class_masks(labels: Labels) -> Iterator[NDArray[np.bool_]]:
    """Yield the (num_events,) mask of each class that has events."""
    for label in np.unique(labels):
        yield labels == label


def describe_weights(weights: Floats) -> str:
    """Describe weights in words: their number, their relative values, and the effective number.

    Values are relative to the smallest absolute weight that is not 0. At most five different values
    are listed; of more the text gives the range and the share of negative weights. The effective
    number is sum^2 / sum of squares.

    Examples:
        >>> describe_weights(np.repeat([-2.0, 2.0, 6.0], [5, 6, 1]))
        '12 events with weights of -1, 1, 3, which add up to 4: effectively 0.8 events'
    """
    sizes = np.abs(weights[weights != 0])
    if not len(sizes):
        return f"{len(weights)} events of no weight"
    # The smallest weight is the unit, so that a common factor does not change the text.
    relative = weights / sizes.min()
    values = np.unique(np.round(relative, 6))
    if len(values) <= _MOST_LISTED:
        listed = ", ".join(f"{value:g}" for value in values)
        described = f"of {listed}"
    else:
        share_negative = float((weights < 0).mean())
        low, high = values[0], values[-1]
        described = f"from {low:.3g} to {high:.3g}, {share_negative:.0%} of them negative"
    num_effective, _ = WeightSums.of(weights).effective_events(1.0)
    return (
        f"{len(weights)} events with weights {described}, "
        f"which add up to {relative.sum():.3g}: effectively {num_effective:.1f} events"
    )


class ScoredEvents(NamedTuple):
    """Events with the probabilities that a model gives them."""

    labels: Labels
    """(num_events,) true classes."""
    probabilities: Floats
    """(num_events, num_classes) predicted probabilities."""
    weights: Floats
    """(num_events,) physics weights within a class. Each class adds up to its number of events, and
    its samples have the proportions of their rates, where these are known."""
    hlf: NDArray[np.float32]
    """(num_events, NUM_HLF) raw high-level features."""
    samples: NDArray[np.str_]
    """(num_events,) names of the samples."""

    @classmethod
    def from_predictions(
        cls, predictions: pa.Table, rates: Mapping[str, float] | None = None
    ) -> ScoredEvents:
        """Take the events from a table of `models.prediction.predict` with the column `hlf`.

        `rates` are those of the samples before the classifier, if known; they mix the samples of a
        class.
        """
        labels = predictions["label"].to_numpy()
        samples = predictions["sample"].to_numpy().astype(str)
        weights = predictions["weight"].to_numpy()
        factors = mixing_factors(labels, samples, weights, rates)
        class_weights = within_classes(labels, weights * factors)
        probabilities = column_array(predictions, "probability").astype(np.float64)
        hlf = column_array(predictions, "hlf")
        return cls(labels, probabilities, class_weights, hlf, samples)

    def select(self, rows: NDArray[np.int64]) -> ScoredEvents:
        """Return the events in some rows."""
        return ScoredEvents._make(column[rows] for column in self)
