"""Intervals of shares, and of the difference of two shares of the same seeds."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Self

import pandas as pd
from scipy.special import betaincinv, stdtrit

#: Lower limit of the standard deviation over seeds. Simulated times may agree to the last bit, and
#: a spread of 0 would make every difference certain.
SMALLEST_SPREAD: Final = 1e-6


class Limits(NamedTuple):
    """Both ends of an interval."""

    low: float
    high: float


def share_interval(num_holding: int, num_all: int, level: float) -> Limits:
    """Return the exact interval of a share (Clopper and Pearson 1934).

    Either end is wrong with a probability of at most half the level.

    Args:
        num_holding: How many have the property.
        num_all: Of how many; at least 1.
        level: Probability that the interval misses the true share.

    Examples:
        >>> [round(end, 2) for end in share_interval(3, 4, 0.05)]
        [0.19, 0.99]
    """
    num_failing = num_all - num_holding
    low, high = 0.0, 1.0
    if num_holding > 0:
        low = float(betaincinv(num_holding, num_failing + 1, level / 2))
    if num_failing > 0:
        high = float(betaincinv(num_holding + 1, num_failing, 1 - level / 2))
    return Limits(low, high)


class MeanShare(NamedTuple):
    """The mean of a share over seeds."""

    mean: float
    spread: float
    """Standard deviation over the seeds."""
    is_outcome: bool
    """Whether a run has the share 0 or 1, such as whether it diverged."""

    def limits(self, num_seeds: int, level: float) -> Limits:
        """Return the interval of the true mean: exact for outcomes, else of Student's t.

        It lies within 0 to 1.
        """
        if self.is_outcome:
            return share_interval(round(self.mean * num_seeds), num_seeds, level)
        half_width = _half_width(self.spread, num_seeds, level)
        return Limits(max(self.mean - half_width, 0.0), min(self.mean + half_width, 1.0))

    def widths(self, num_seeds: int, level: float) -> tuple[float, float]:
        """Return how far the interval of the true mean reaches below and above the mean."""
        low, high = self.limits(num_seeds, level)
        return self.mean - low, high - self.mean


class SharePair(NamedTuple):
    """Two shares of the same seeds, of which the second is subtracted from the first."""

    first: MeanShare
    second: MeanShare
    correlation: float
    """Correlation over the seeds; 0 where one of them is constant."""
    smallest_spread: float
    """Lower limit of the standard deviation of the difference over the seeds; 0 for outcomes."""

    @classmethod
    def from_numbers(
        cls,
        first: pd.Series,
        second: pd.Series,
        *,
        is_outcome: bool,
        smallest_spread: float = SMALLEST_SPREAD,
    ) -> Self:
        """Return two shares from one number per seed, (num_seeds,) and in the same order.

        `smallest_spread`: lower limit of the standard deviation of the difference over the seeds;
        the exact interval of outcomes needs none.
        """
        first_share = MeanShare(float(first.mean()), float(first.std()), is_outcome)
        second_share = MeanShare(float(second.mean()), float(second.std()), is_outcome)
        correlation = 0.0
        if first_share.spread > 0 and second_share.spread > 0:
            covariance = float(first.cov(second))
            if is_outcome:
                covariance = _corrected_covariance(covariance, len(first))
            correlation = covariance / (first_share.spread * second_share.spread)
        if is_outcome:
            smallest_spread = 0.0
        return cls(first_share, second_share, correlation, smallest_spread)

    def widths(self, num_seeds: int, level: float) -> tuple[float, float]:
        """Return how far the interval of the difference reaches below and above it.

        The distances of both shares from their limits are added like correlated errors (Newcombe
        1998, method 10; Zou and Donner 2008). The interval lies within -1 to 1. It is that of
        Student's t for the paired differences where no limit is cut at 0 or 1, and no narrower than
        that of the smallest spread.
        """
        first_below, first_above = self.first.widths(num_seeds, level)
        second_below, second_above = self.second.widths(num_seeds, level)
        below = self._distance(first_below, second_above)
        above = self._distance(first_above, second_below)

        smallest_width = _half_width(self.smallest_spread, num_seeds, level)
        return max(below, smallest_width), max(above, smallest_width)

    def _distance(self, first: float, second: float) -> float:
        """Return the distance of the difference that these distances of both shares make."""
        square = first**2 + second**2 - 2 * self.correlation * first * second
        # Rounding may leave a little less than 0.
        return math.sqrt(max(square, 0.0))


def _half_width(spread: float, num_seeds: int, level: float) -> float:
    """Return half the width of Student's interval of a mean with this spread over the seeds."""
    quantile = -float(stdtrit(num_seeds - 1, level / 2))
    return quantile * spread / math.sqrt(num_seeds)


def _corrected_covariance(covariance: float, num_seeds: int) -> float:
    """Return a covariance of two outcomes with the correction for continuity of Newcombe's method.

    Outcomes that agree at all seeds so far need not agree at the next one. The correction takes
    half a seed from a positive covariance, and leaves at least 0.

    Examples:
        >>> pair = pd.Series([1.0, 0.0, 1.0, 0.0])
        >>> round(float(_corrected_covariance(pair.cov(pair), 4)), 3)
        0.167
    """
    if covariance <= 0:
        return covariance
    return max(covariance - 0.5 / (num_seeds - 1), 0.0)
