"""Shares of weighted events with exact intervals, and thresholds that keep a share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

import numpy as np

# It loads its parts at their first use, so commands that only plan do not wait for `scipy.special`.
import scipy
from numpy.typing import NDArray

from models.evaluation.rounding import limit_of

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Probability outside a central interval of one standard deviation.
ONE_SIGMA: Final = 0.31731
#: Sums of weights differ by less of their size for no other reason than rounding.
ROUNDING: Final = 1e-9
#: With fewer events on one side of a cut, intervals cover at least what they promise, like Clopper and Pearson's.
FEW: Final = 10.0


class Efficiency(NamedTuple):
    """A share or a rate with its central interval.

    Where nothing passes, `high` is an upper limit; where all of a share passes, `low` is a lower limit.
    """

    value: float
    low: float
    high: float

    def as_json(self, *, most: float = 1.0) -> dict[str, Any]:
        """For JSON, with `limit` if one end is a limit; `most` is the highest possible value, infinite for a rate."""
        # No number is near an infinite end.
        ends = (0.0, most)
        content: dict[str, Any] = {
            name: _without_rounding(number, ends) for name, number in self._asdict().items()
        }
        limit = limit_of(content, most)
        return content if limit is None else {**content, "limit": limit}


def _without_rounding(number: float, ends: Iterable[float]) -> float:
    """A number, or the end of its range that it is but for rounding."""
    return next((end for end in ends if abs(number - end) <= ROUNDING), number)


class WeightSums(NamedTuple):
    """Sums over some events."""

    weight: float
    weight2: float
    """Sum of the squares of the weights."""

    @classmethod
    def of(cls, weights: Floats) -> Self:
        """Sums of (num_events,) weights."""
        return cls(float(weights.sum()), float(np.square(weights).sum()))

    @property
    def is_positive(self) -> bool:
        """Whether the weights add up to more than 0; weights that cancel may leave a rounding error."""
        return self.weight > ROUNDING * math.sqrt(self.weight2)

    def counted(self, typical: float) -> tuple[float, float]:
        """Effective number of events, and their weight; 0 and the typical weight if the sum is 0 or less."""
        # Differences of large sums may leave a weight without a square.
        if not self.is_positive or self.weight2 <= 0:
            return 0.0, typical
        return self.weight**2 / self.weight2, self.weight2 / self.weight


def typical_weight(weights: Floats) -> float:
    """Weight of an event that was not seen: mean of the sizes, weighted with these.

    Weights that cancel each other make the events neither fewer nor heavier.

    Examples:
        >>> typical_weight(np.array([1.0, -1.0, 1.0])), typical_weight(np.array([1.0, 3.0]))
        (1.0, 2.5)
    """
    sizes = float(np.abs(weights).sum())
    return float(np.square(weights).sum()) / sizes if sizes > 0 else 0.0


def effective_numbers(sums: Floats, squares: Floats) -> Floats:
    """Effective numbers of events with these sums of weights and of their squares; 0 where a sum is 0 or less."""
    is_positive = (sums > 0) & (squares > 0)
    return np.divide(np.square(sums), squares, out=np.zeros_like(sums), where=is_positive)


def efficiency_of_sums(
    passing: WeightSums, failing: WeightSums, *, typical: float | None = None
) -> Efficiency:
    """Weighted share that passes, with its interval; the weights of both sums add up to more than 0.

    `typical` is the weight of an event where none was seen; None for that of weights that are all positive.

    The weights of those that pass and of those that fail count separately, so that the interval is right where weights
    and passing are correlated. With weights of 1 and fewer than 10 events on one side it is Clopper and Pearson's
    (1934), which covers at least what it promises. With more events it is Jeffreys' (Brown, Cai, DasGupta 2001), which
    covers what it promises on average. A sum of weights counts as a number of equal weights with the same sum and
    variance (Bohm and Zech 2014).
    """
    total = passing.weight + failing.weight
    if typical is None:
        typical = (passing.weight2 + failing.weight2) / total
    (num_passing, of_passing), (num_failing, of_failing) = (
        passing.counted(typical),
        failing.counted(typical),
    )

    def end(quantile: float, more_passing: float, more_failing: float) -> float:
        if num_passing + more_passing == 0 or num_failing + more_failing == 0:
            return float(num_failing + more_failing == 0)
        place = scipy.special.betaincinv(
            num_passing + more_passing, num_failing + more_failing, quantile
        )
        return float(of_passing * place / (of_passing * place + of_failing * (1 - place)))

    added = (
        ((0.0, 1.0), (1.0, 0.0))
        if min(num_passing, num_failing) < FEW
        else ((0.5, 0.5), (0.5, 0.5))
    )
    low, high = end(ONE_SIGMA / 2, *added[0]), end(1 - ONE_SIGMA / 2, *added[1])
    return Efficiency(passing.weight / total, low, high)


def efficiency(passing: NDArray[np.bool_], weights: Floats) -> Efficiency:
    """Weighted share of (num_events,) that pass, with the interval of `efficiency_of_sums`.

    The weights have a sum above 0; with negative ones the value may lie outside 0 to 1.
    """
    sums_passing, sums_failing = WeightSums.of(weights[passing]), WeightSums.of(weights[~passing])
    return efficiency_of_sums(sums_passing, sums_failing, typical=typical_weight(weights))


def thresholds(scores: Floats, weights: Floats, wanted: Floats) -> Floats:
    """The highest threshold for each wanted share: at least this share of the weight has scores at or above it.

    With negative weights, several thresholds may give the same share; the highest one counts. Scores and weights are
    (num_events,), the weights of a sum above 0; the wanted shares are above 0 and at most 1.
    """
    total = weights.sum()
    values, place = np.unique(scores, return_inverse=True)
    # Events with the same score pass or fail together.
    kept = np.cumsum(np.bincount(place, weights, minlength=len(values))[::-1]) / total
    # The highest share of any threshold down to this one always rises, unlike the share itself with negative weights.
    return np.asarray(
        values[::-1][first_kept(np.maximum.accumulate(kept), wanted)], dtype=np.float64
    )


def first_kept(kept: Floats, wanted: Floats) -> NDArray[np.int64]:
    """Index of the highest threshold that keeps each wanted share.

    `kept` is the highest share kept at this threshold or a higher one, from the highest threshold down.
    """
    # The lowest score keeps all events, but rounding may make the sum of many weights a little less than 1.
    return np.minimum(np.searchsorted(kept, wanted - 1e-12), len(kept) - 1)
