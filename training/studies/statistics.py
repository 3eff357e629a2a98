"""Means over seeds, their errors, and the significance of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import stdtrit

#: Quantile at the upper end of a two-sided interval of 95 %.
_BELOW: Final = 0.975


class Mean(NamedTuple):
    """A mean over seeds."""

    value: float
    spread: float
    """Standard deviation over the seeds; NaN for one seed."""
    error: float
    """Standard error of the mean."""
    num_seeds: int


class Difference(NamedTuple):
    """Difference of two methods, seed by seed, on the same test events."""

    mean: Mean
    binomial_error: float
    """Binomial error of an accuracy on this test split."""
    spread: float
    """Standard deviation over the seeds of the method that varies more."""

    @property
    def why_not(self) -> list[str]:
        """Reasons why the difference is not significant; empty if it is."""
        size, mean = abs(self.mean.value), self.mean
        reasons = []
        if size <= self.binomial_error:
            reasons.append(f"smaller than the binomial error of the test split ({points(self.binomial_error)})")
        if mean.num_seeds == 1:
            reasons.append("the spread is unknown with one seed")
            return reasons
        if size <= self.spread:
            reasons.append(f"smaller than the spread over seeds ({points(self.spread)})")
        if size <= self.limit:
            reasons.append(f"within {points(self.limit)} of zero, the 95 % interval of its own mean")
        return reasons

    @property
    def limit(self) -> float:
        """Half the 95 % interval of the mean."""
        return student(self.mean.num_seeds - 1) * self.mean.error


def mean_of(values: Sequence[float]) -> Mean:
    """Mean, spread and error of some values.

    Examples:
        >>> mean_of([0.9, 0.92])
        Mean(value=0.91, spread=0.014142135623730963, error=0.010000000000000009, num_seeds=2)
    """
    number = len(values)
    spread = float(np.std(values, ddof=1)) if number > 1 else math.nan
    return Mean(float(np.mean(values)), spread, spread / math.sqrt(number), number)


def binomial_error(accuracy: float, num_events: int) -> float:
    """Binomial error of an accuracy on `num_events` events.

    Examples:
        >>> round(binomial_error(0.9, 900), 4)
        0.01
    """
    return math.sqrt(accuracy * (1 - accuracy) / num_events)


def difference(this: Sequence[float], other: Sequence[float], num_events: int) -> Difference:
    """Difference of the accuracies of two methods, given for the same seeds in the same order.

    Examples:
        >>> difference([0.95, 0.96, 0.95], [0.90, 0.91, 0.90], 10_000).why_not
        []
        >>> difference([0.951, 0.962], [0.950, 0.960], 100).why_not[0]
        'smaller than the binomial error of the test split (2.06 points)'
    """
    mean = mean_of([a - b for a, b in zip(this, other, strict=True)])
    both = (mean_of(this), mean_of(other))
    spread = max(each.spread for each in both)
    return Difference(mean, binomial_error(float(np.mean([each.value for each in both])), num_events), spread)


def student(degrees: int) -> float:
    """Student's t: number of standard errors of a 95 % interval; larger for few seeds, whose spread is uncertain.

    Examples:
        >>> round(student(2), 2), round(student(40), 2)
        (4.3, 2.02)
    """
    return float(stdtrit(degrees, _BELOW))


def points(share: float) -> str:
    """A difference of accuracies in percentage points.

    Examples:
        >>> points(0.0123)
        '1.23 points'
    """
    return f"{100 * share:.2f} points"
