"""Shares of weighted events with exact intervals, and thresholds that keep a share."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Self

import numpy as np

# It loads its parts at their first use, so commands that only plan do not wait for `scipy.special`.
import scipy
from numpy.typing import NDArray

from hep_core.weight_sums import are_positive, without_rounding
from models.evaluation.rounding import limit_of

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Probability that a normal number lies more than one standard deviation from its mean; half of it
#: lies beyond each end of a central interval.
ONE_SIGMA: Final = 0.31731
#: Relative rounding error of a sum of shares that add up to 1.
_ROUNDING_OF_SHARES: Final = 1e-12
#: With effectively fewer events on one side of a cut, intervals cover at least what they promise,
#: like those of Clopper and Pearson.
FEW: Final = 10.0


class Efficiency(NamedTuple):
    """A share or a rate with its central interval.

    Where nothing passes, `high` is an upper limit; where all of a share passes, `low` is a lower
    limit.
    """

    value: float
    low: float
    high: float

    def as_json(self, *, most: float = 1.0) -> dict[str, Any]:
        """Return the interval for JSON, with `limit` (`upper` or `lower`) if one end is a limit.

        `most` is the highest possible value: 1 for a share, infinite for a rate. Numbers that
        differ from it only by rounding become it. Small numbers stay, since a rate may have any
        unit: only a sum of weights tells whether it is 0.
        """
        numbers: dict[str, Any] = {}
        for name, number in self._asdict().items():
            is_most = math.isclose(number, most, rel_tol=_ROUNDING_OF_SHARES)
            numbers[name] = most if is_most else number
        limit = limit_of(numbers, most)
        if limit is not None:
            numbers["limit"] = limit
        return numbers


class WeightSums(NamedTuple):
    """Sums of the weights of some events, and of their squares."""

    weight: float
    """Sum of the weights."""
    weight2: float
    """Sum of the squares of the weights."""

    @classmethod
    def of(cls, weights: Floats) -> Self:
        """Sum (num_events,) weights."""
        return cls(float(weights.sum()), float(np.square(weights).sum()))

    @property
    def is_positive(self) -> bool:
        """Whether the weights add up to more than 0, beyond rounding."""
        return bool(are_positive(self.weight, self.weight2))

    @property
    def is_zero(self) -> bool:
        """Whether the weights add up to 0, but for rounding."""
        return without_rounding(self.weight, self.weight2) == 0

    def effective_events(self, typical: float) -> tuple[float, float]:
        """Return the effective number of events, and the weight of one of them.

        It is the number n of equal weights w that have the same sum and sum of squares: n = sum^2 /
        squares, w = squares / sum. If the sum is 0 or less, n is 0 and w is the `typical` weight.
        """
        # Differences of large sums may leave a weight without a square.
        if not self.is_positive or self.weight2 <= 0:
            return 0.0, typical
        num_events = self.weight**2 / self.weight2
        weight_of_event = self.weight2 / self.weight
        return num_events, weight_of_event


def typical_weight(weights: Floats) -> float:
    """Estimate the weight of an event where none was seen.

    It is the mean absolute weight, weighted with itself: sum of squares / sum of absolute weights.
    Weights that cancel each other make the events neither fewer nor heavier.

    Examples:
        >>> typical_weight(np.array([1.0, -1.0, 1.0])), typical_weight(np.array([1.0, 3.0]))
        (1.0, 2.5)
    """
    sizes = float(np.abs(weights).sum())
    if sizes > 0:
        return float(np.square(weights).sum()) / sizes
    return 0.0


def effective_numbers(sums: Floats, squares: Floats) -> Floats:
    """Compute the effective numbers of events with these sums of weights and of their squares.

    They are 0 where a sum is 0 or less.
    """
    # Differences of large sums may leave a weight without a square.
    has_squares = squares > 0
    is_positive = are_positive(sums, np.maximum(squares, 0.0)) & has_squares
    no_events = np.zeros_like(sums)
    return np.divide(np.square(sums), squares, out=no_events, where=is_positive)


def efficiency_of_sums(
    passing: WeightSums, failing: WeightSums, *, typical: float | None = None
) -> Efficiency:
    """Compute the weighted share that passes, with its central one-sigma interval.

    The weights of events that pass and of events that fail count separately, so that the interval
    is right where weights and passing are correlated. Each sum of weights counts as a number of
    equal weights with the same sum and variance (Bohm and Zech 2014). The interval is made of
    quantiles of a beta distribution:

    - With fewer than 10 events on one side it is that of Clopper and Pearson (1934), which covers
      at least what it promises. One event is added to the side that makes the interval longer.
    - Else it is that of Jeffreys (Brown, Cai, DasGupta 2001), which covers what it promises on
      average. Half an event is added to each side.

    Args:
        passing: Sums of the weights of events that pass.
        failing: Sums of the weights of events that fail; both together are above 0.
        typical: Weight of an event where none was seen. Without it all weights must be positive.
    """
    total = passing.weight + failing.weight
    if typical is None:
        typical = (passing.weight2 + failing.weight2) / total
    num_passing, weight_passing = passing.effective_events(typical)
    num_failing, weight_failing = failing.effective_events(typical)

    def quantile_of_share(level: float, extra_passing: float, extra_failing: float) -> float:
        """Compute a quantile of the share, with some more events on either side than were seen."""
        passes = num_passing + extra_passing
        fails = num_failing + extra_failing
        if fails == 0:
            return 1.0
        if passes == 0:
            return 0.0
        # The beta distribution describes the share of equal events; then the two weights enter.
        quantile = scipy.special.betaincinv(passes, fails, level)
        passing_weight = weight_passing * quantile
        failing_weight = weight_failing * (1 - quantile)
        return float(passing_weight / (passing_weight + failing_weight))

    if min(num_passing, num_failing) < FEW:
        low = quantile_of_share(ONE_SIGMA / 2, 0.0, 1.0)
        high = quantile_of_share(1 - ONE_SIGMA / 2, 1.0, 0.0)
    else:
        low = quantile_of_share(ONE_SIGMA / 2, 0.5, 0.5)
        high = quantile_of_share(1 - ONE_SIGMA / 2, 0.5, 0.5)
    if failing.is_zero:
        return Efficiency(1.0, low, high)
    value = 0.0 if passing.is_zero else passing.weight / total
    return Efficiency(value, low, high)


def efficiency(passing: NDArray[np.bool_], weights: Floats) -> Efficiency:
    """Compute the weighted share of events that pass, with the interval of `efficiency_of_sums`.

    The (num_events,) weights have a sum above 0; with negative ones the value may lie outside 0 to
    1.
    """
    sums_passing = WeightSums.of(weights[passing])
    sums_failing = WeightSums.of(weights[~passing])
    return efficiency_of_sums(sums_passing, sums_failing, typical=typical_weight(weights))


def thresholds(scores: Floats, weights: Floats, shares: Floats) -> Floats:
    """Find the highest threshold for each share such that at least this share of the weight passes.

    Events at or above the threshold pass. With negative weights, several thresholds may give the
    same share; the highest one counts.

    Args:
        scores: (num_events,).
        weights: (num_events,), of a sum above 0.
        shares: (num_points,), above 0 and at most 1.
    """
    # Events with the same score pass or fail together.
    values, value_index = np.unique(scores, return_inverse=True)
    weight_of_value = np.bincount(value_index, weights, minlength=len(values))
    # Reversed, the sums run from the highest score down.
    share_above = np.cumsum(weight_of_value[::-1]) / weights.sum()
    # With negative weights the share may fall; the highest share so far always rises.
    highest_share = np.maximum.accumulate(share_above)
    falling_values = values[::-1]
    index = first_reaching(highest_share, shares)
    return np.asarray(falling_values[index], dtype=np.float64)


def first_reaching(highest_share: Floats, shares: Floats) -> NDArray[np.int64]:
    """Find the index of the highest threshold that reaches each of some shares, (num_points,).

    `highest_share` (num_thresholds,) never falls: it is the highest share at each threshold or any
    above it, from the highest threshold down.
    """
    # The lowest score keeps all events, but rounding may make the sum of many weights less than 1.
    index = np.searchsorted(highest_share, shares - 1e-12)
    return np.minimum(index, len(highest_share) - 1)
