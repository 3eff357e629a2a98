"""Verdicts on differences: the interval of a difference, and the region that it lies in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

#: Probability of one or more wrong verdicts in a family of comparisons.
LEVEL: Final = 0.05
#: A study cannot decide what needs more than this times its seeds and events.
_LARGEST_GROWTH: Final = 10.0
#: Simulated times may agree to the last bit. A spread of 0 would make every difference certain.
_SMALLEST_SPREAD: Final = 1e-6
#: Products such as 0.55 * 20 are a little above the whole number.
_ROUNDING: Final = 1e-9


class Verdict(StrEnum):
    """What the runs say about a claim."""

    CONFIRMED = "confirmed"
    EQUIVALENT = "equivalent"
    SMALLER = "smaller than claimed"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_DECIDABLE = "not decidable here"
    WITHDRAWN = "withdrawn"


#: Verdicts by which the claim holds, and by which it fails.
HOLDS: Final = (Verdict.CONFIRMED, Verdict.EQUIVALENT)
FAILS: Final = (Verdict.SMALLER, Verdict.CONTRADICTED)
#: Verdicts that leave it open.
OPEN: Final = (Verdict.UNDECIDED, Verdict.NOT_DECIDABLE, Verdict.WITHDRAWN)


class Difference(NamedTuple):
    """Mean of paired differences, with the variances of its two samples: seeds and test events.

    The variances come from the analysis of variance of the differences (num_seeds, num_events).
    It gives what a two-way bootstrap estimates, without the bootstrap's bias for few seeds.
    """

    mean: float
    seed_variance: float
    """Variance of the mean of a seed; NaN for one seed."""
    num_seeds: int
    event_variance: float = 0.0
    """Variance of the mean of an event, as far as all seeds share it."""
    num_events: int = 0
    """0 where seeds are the only sample."""
    shifts: tuple[float, float] = (0.0, 0.0)
    """Lowest and highest error that all seeds share, such as that of simulated times.

    More data do not change it.
    """

    @classmethod
    def from_seeds(
        cls, differences: ArrayLike, *, shifts: tuple[float, float] = (0.0, 0.0)
    ) -> Self:
        """Return the difference of one number per seed, (num_seeds,)."""
        values = np.asarray(differences, dtype=np.float64)
        if len(values) == 0 or not np.isfinite(values).all():
            return cls(math.nan, math.nan, len(values))
        variance = math.nan
        if len(values) > 1:
            variance = max(float(values.var(ddof=1)), _SMALLEST_SPREAD**2)
        return cls(float(values.mean()), variance, len(values), shifts=shifts)

    @classmethod
    def from_events(cls, differences: ArrayLike) -> Self:
        """Return the difference of one number per seed and test event, (num_seeds, num_events)."""
        values = np.asarray(differences, dtype=np.float64)
        if len(values) < 2:
            mean = float(values.mean()) if len(values) else math.nan
            return cls(mean, math.nan, len(values))

        num_seeds, num_events = values.shape
        seed_means = values.mean(axis=1)
        event_means = values.mean(axis=0)
        residuals = values - seed_means[:, None] - event_means + values.mean()
        residual_variance = np.square(residuals).sum() / ((num_seeds - 1) * (num_events - 1))
        # An accuracy is known no better than to one event.
        seed_variance = max(float(seed_means.var(ddof=1)), 1 / num_events**2)
        event_variance = float(event_means.var(ddof=1) - residual_variance / num_seeds)
        return cls(
            float(values.mean()), seed_variance, num_seeds, max(event_variance, 0.0), num_events
        )

    def half_width(self, level: float = LEVEL) -> float:
        """Return half the width of the interval that misses the truth in this share of studies.

        Each variance has the quantile of Student's t for its own degrees of freedom (Banerjee
        1961). The shifts that all seeds share are not part of it.
        """
        if not math.isfinite(self.seed_variance):
            return math.inf
        square = 0.0
        for variance, size in (
            (self.seed_variance, self.num_seeds),
            (self.event_variance, self.num_events),
        ):
            if size > 1:
                quantile = float(stats.t.isf(level / 2, size - 1))
                square += variance / size * quantile**2
        return math.sqrt(square)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return both ends of the interval, with the shifts that all seeds share."""
        half_width = self.half_width(level)
        lowest_shift, highest_shift = self.shifts
        return self.mean - half_width + lowest_shift, self.mean + half_width + highest_shift


def verdict_of(
    mean: float,
    half_width: float,
    threshold: float,
    *,
    shifts: tuple[float, float] = (0.0, 0.0),
    is_equivalence: bool = False,
) -> Verdict:
    """Return the verdict on a difference with this interval, whose ends the shifts move.

    The claim is decided once the interval lies inside one region of true differences. As long as
    the interval holds the truth, more data only decide an open claim, or turn a smaller effect
    into one of the other direction. `threshold`: the difference that confirms an effect, or that
    contradicts an equivalence.

    Examples:
        >>> [str(verdict_of(mean, 1, 3)) for mean in (5, 3.5, 1, -2)]
        ['confirmed', 'undecided', 'smaller than claimed', 'contradicted']
        >>> [str(verdict_of(mean, 1, 3, is_equivalence=True)) for mean in (1, -3.5, -5)]
        ['equivalent', 'undecided', 'contradicted']
    """
    region = _equivalence_region if is_equivalence else _effect_region
    verdict = region(mean - half_width + shifts[0], mean + half_width + shifts[1], threshold)
    if verdict is not None:
        return verdict
    # The interval after the largest growth of the study, if the difference stays the same.
    narrowest = half_width / math.sqrt(_LARGEST_GROWTH)
    if region(mean - narrowest + shifts[0], mean + narrowest + shifts[1], threshold) is None:
        return Verdict.NOT_DECIDABLE
    return Verdict.UNDECIDED


def _effect_region(low: float, high: float, threshold: float) -> Verdict | None:
    """Return the verdict on an effect with this interval; None if several are possible."""
    if low >= threshold:
        return Verdict.CONFIRMED
    if high < 0:
        return Verdict.CONTRADICTED
    return Verdict.SMALLER if high < threshold else None


def _equivalence_region(low: float, high: float, threshold: float) -> Verdict | None:
    """Return the verdict on an equivalence with this interval; None if several are possible."""
    if -threshold < low and high < threshold:
        return Verdict.EQUIVALENT
    if low >= threshold or high <= -threshold:
        return Verdict.CONTRADICTED
    return None


def holm_levels(decides_at: Sequence[Callable[[float], bool]]) -> list[float]:
    """Return the level of each comparison of a family (Holm 1979).

    `decides_at`: tells of each comparison whether its interval at a level decides it.

    Examples:
        >>> decides_at = [lambda level: level > 0.02, lambda level: level > 0.9]
        >>> [round(level, 4) for level in holm_levels(decides_at)]
        [0.025, 0.05]
    """
    levels = [LEVEL] * len(decides_at)
    undecided = set(range(len(decides_at)))
    while undecided:
        level = LEVEL / len(undecided)
        for index in undecided:
            levels[index] = level
        decided = {index for index in undecided if decides_at[index](level)}
        if not decided:
            break
        undecided -= decided
    return levels


def num_required(share: float, num_comparisons: int) -> int:
    """Return how many comparisons must hold if this share of them is required."""
    return math.ceil(share * num_comparisons - _ROUNDING)


def combine_verdicts(verdicts: Sequence[Verdict], *, share: float = 1.0) -> Verdict:
    """Return the verdict on a claim of several comparisons, of which this share must hold.

    Examples:
        >>> verdicts = [Verdict.CONFIRMED, Verdict.CONTRADICTED]
        >>> str(combine_verdicts(verdicts)), str(combine_verdicts(verdicts, share=0.5))
        ('contradicted', 'confirmed')
    """
    if not verdicts:
        return Verdict.NOT_DECIDABLE
    required = num_required(share, len(verdicts))
    num_holding = sum(verdict in HOLDS for verdict in verdicts)
    num_failing = sum(verdict in FAILS for verdict in verdicts)
    num_contradicted = verdicts.count(Verdict.CONTRADICTED)
    num_undecided = verdicts.count(Verdict.UNDECIDED)

    # Enough comparisons hold.
    if num_holding >= required:
        return Verdict.EQUIVALENT if Verdict.EQUIVALENT in verdicts else Verdict.CONFIRMED
    # Too few are left that do not fail.
    if len(verdicts) - num_failing < required:
        is_contradicted = len(verdicts) - num_contradicted < required
        return Verdict.CONTRADICTED if is_contradicted else Verdict.SMALLER
    # More data decide the undecided ones: would that decide the claim in either direction?
    may_hold = num_holding + num_undecided >= required
    may_fail = len(verdicts) - num_failing - num_undecided < required
    return Verdict.UNDECIDED if may_hold or may_fail else Verdict.NOT_DECIDABLE
