"""Predictions of one model as arrays, and weights of events within classes and samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models.evaluation.intervals import Floats, Labels, WeightSums
from models.prediction import rows_of

#: Highest number of different weights that words name one by one.
_MOST_NAMED: Final = 5


def balanced(labels: Labels, weights: Floats, num_classes: int) -> Floats:
    """Weights with which every class adds up to 1; the sum of each is above 0 before.

    Examples:
        >>> balanced(np.array([0, 0, 1]), np.array([1.0, 3.0, 7.0]), 2).tolist()
        [0.25, 0.75, 1.0]
    """
    sums = np.bincount(labels, weights, minlength=num_classes)
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


def joined(labels: Labels, samples: NDArray[np.str_], weights: Floats) -> NDArray[np.str_]:
    """Names of the samples; one whose weights add up to 0 or less gets the name of the largest one of its class.

    Examples:
        >>> joined(np.zeros(3, int), np.array(["a", "a", "b"]), np.array([1.0, 1.0, -1.0])).tolist()
        ['a', 'a', 'a']
    """
    names = samples.copy()
    for label in np.unique(labels):
        ours = labels == label
        while True:
            found, place = np.unique(names[ours], return_inverse=True)
            sums = np.bincount(place, weights[ours])
            # A sum that is no number is refused elsewhere.
            if len(found) == 1 or not sums.min() <= 0:
                break
            names[ours & (names == found[sums.argmin()])] = found[sums.argsort()[-1]]
    return names


def mixing_factors(
    labels: Labels, samples: NDArray[np.str_], weights: Floats, rates: Mapping[str, float] | None
) -> Floats:
    """Factors of the weights with which the samples of a class have the proportions of their rates.

    Without rates before the classifier they keep the proportions of their weights. A sample that is joined to another
    brings its rate along.

    Examples:
        >>> mixing_factors(np.zeros(3, int), np.array(["a", "a", "b"]), np.ones(3), {"a": 6.0, "b": 1.0}).tolist()
        [3.0, 3.0, 1.0]
    """
    factors = np.ones(len(labels))
    if rates is not None:
        names = joined(labels, samples, weights)
        for label in np.unique(labels):
            ours = labels == label
            found, place = np.unique(names[ours], return_inverse=True)
            if len(found) > 1:
                joint = dict(zip(samples[ours], names[ours], strict=True))
                sizes = np.array(
                    [sum(rates[each] for each in joint if joint[each] == name) for name in found]
                )
                factors[ours] = (sizes / np.bincount(place, weights[ours]))[place]
    return factors


def weights_in_words(weights: Floats) -> str:
    """How many events there are, their weights relative to the smallest, and for how many events they count.

    Examples:
        >>> weights_in_words(np.repeat([-2.0, 2.0, 6.0], [5, 6, 1]))
        '12 events with weights of -1, 1, 3, which add up to 4: effectively 0.8 events'
    """
    sizes = np.abs(weights[weights != 0])
    if not len(sizes):
        return f"{len(weights)} events of no weight"
    relative = weights / sizes.min()
    values = np.unique(np.round(relative, 6))
    if len(values) <= _MOST_NAMED:
        described = f"of {', '.join(f'{value:g}' for value in values)}"
    else:
        share_negative = float((weights < 0).mean())
        described = (
            f"from {values[0]:.3g} to {values[-1]:.3g}, {share_negative:.0%} of them negative"
        )
    effective = WeightSums.of(weights).counted(1.0)[0]
    return (
        f"{len(weights)} events with weights {described}, which add up to {relative.sum():.3g}: effectively "
        f"{effective:.1f} events"
    )


class ScoredEvents(NamedTuple):
    """Events with the probabilities that a model gives them."""

    labels: Labels
    """(num_events,) true classes."""
    probabilities: Floats
    """(num_events, num_classes) predicted probabilities."""
    weights: Floats
    """(num_events,) physics weights within a class; each class adds up to its number of events, and its samples have
    the proportions of their rates, where these are known."""
    hlf: NDArray[np.float32]
    """(num_events, NUM_HLF) raw high-level features."""
    samples: NDArray[np.str_]
    """(num_events,) names of the samples."""

    @classmethod
    def of(cls, predictions: pa.Table, rates: Mapping[str, float] | None = None) -> ScoredEvents:
        """The events of a table from `models.prediction.predict` with the column `hlf`; rates of samples if known."""
        labels, weights = (predictions[name].to_numpy() for name in ("label", "weight"))
        samples = predictions["sample"].to_numpy().astype(str)
        return cls(
            labels,
            rows_of(predictions, "probability").astype(np.float64),
            within_classes(labels, weights * mixing_factors(labels, samples, weights, rates)),
            rows_of(predictions, "hlf"),
            samples,
        )

    def chosen(self, rows: NDArray[np.int64]) -> ScoredEvents:
        """The events of some numbers."""
        return ScoredEvents._make(column[rows] for column in self)
