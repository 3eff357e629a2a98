"""Verdicts on differences: functions of an estimate and its interval, and how often they err."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

#: Probability of one or more wrong verdicts in a family.
LEVEL: Final = 0.05
#: What needs more than this times the seeds and events of a study is not decidable by it.
MOST_DATA: Final = 10.0
_SMALLEST_SPREAD: Final = 1e-6


class Verdict(StrEnum):
    """What the runs say about a claim."""

    CONFIRMED = "confirmed"
    EQUIVALENT = "equivalent"
    SMALLER = "smaller than claimed"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_DECIDABLE = "not decidable here"


#: Verdicts by which the claim holds, and by which it does not.
HOLDS: Final = (Verdict.CONFIRMED, Verdict.EQUIVALENT)
FAILS: Final = (Verdict.SMALLER, Verdict.CONTRADICTED)
#: Verdicts that leave it open.
OPEN: Final = (Verdict.UNDECIDED, Verdict.NOT_DECIDABLE)


class Difference(NamedTuple):
    """Mean of paired differences, and the parts of its variance.

    Seeds are a sample, and so are test events: others would give other differences. The parts come from the analysis
    of variance of the differences (num_seeds, num_events), which gives what a two-way bootstrap estimates, without its
    bias for few seeds.
    """

    value: float
    of_seed: float
    """Variance of a seed's mean; NaN for one seed."""
    num_seeds: int
    of_event: float = 0.0
    """Variance of an event's mean, as far as common to all seeds."""
    num_events: int = 0
    """0 where seeds are the only sample."""
    shifts: tuple[float, float] = (0.0, 0.0)
    """Between which all seeds may be wrong in common, such as by simulated times: at most 0, and at least 0."""

    @classmethod
    def of_numbers(cls, values: ArrayLike, *, shifts: tuple[float, float] = (0.0, 0.0)) -> Self:
        """Of a number for each seed, (num_seeds,).

        Examples:
            >>> found = Difference.of_numbers([0.2, 0.3])
            >>> round(found.value, 3), round(found.half_width(), 3)
            (0.25, 0.635)
        """
        given = np.asarray(values, dtype=np.float64)
        if len(given) == 0 or not np.isfinite(given).all():
            return cls(math.nan, math.nan, len(given))
        # Simulated times may be equal to the last bit: a spread of 0 would make every difference certain.
        spread = max(float(given.var(ddof=1)), _SMALLEST_SPREAD**2) if len(given) > 1 else math.nan
        return cls(float(given.mean()), spread, len(given), shifts=shifts)

    @classmethod
    def of_events(cls, table: ArrayLike) -> Self:
        """Of a number for each seed and test event, (num_seeds, num_events).

        Examples:
            >>> found = Difference.of_events([[1, 0, 1, 0], [1, 0, 0, 0]])
            >>> found.value, found.num_seeds, found.num_events
            (0.375, 2, 4)
        """
        values = np.asarray(table, dtype=np.float64)
        if len(values) < 2:
            return cls(float(values.mean()) if len(values) else math.nan, math.nan, len(values))
        seeds, events = values.shape
        by_seed, by_event = values.mean(axis=1), values.mean(axis=0)
        rest = np.square(values - by_seed[:, None] - by_event + values.mean()).sum() / ((seeds - 1) * (events - 1))
        # No spread of an accuracy is known better than one event.
        of_seed = max(float(by_seed.var(ddof=1)), 1 / events**2)
        return cls(float(values.mean()), of_seed, seeds, max(float(by_event.var(ddof=1) - rest / seeds), 0.0), events)

    def half_width(self, level: float = LEVEL) -> float:
        """Half of the interval that misses the true difference at most so often, without what is in common.

        Each part of the variance has the quantile of Student's t for its own degrees of freedom (Banerjee 1961).
        """
        if not math.isfinite(self.of_seed):
            return math.inf
        parts = [(self.of_seed, self.num_seeds), (self.of_event, self.num_events)]
        squares = [part / n * float(stats.t.isf(level / 2, n - 1)) ** 2 for part, n in parts if n > 1]
        return math.sqrt(sum(squares))

    def at(self, level: float) -> Interval:
        """Its interval."""
        width = self.half_width(level)
        low, high = self.shifts
        return Interval(self.value, self.value - width + low, self.value + width + high, self.shifts)


class Interval(NamedTuple):
    """An estimate and its interval, positive in the direction of the claim."""

    value: float
    low: float
    high: float
    shifts: tuple[float, float] = (0.0, 0.0)
    """The parts of both ends that more data does not make shorter."""

    def with_data(self, times: float) -> Interval:
        """What this many times the data would give, if the true difference is this one."""
        low, high = (
            self.value + shift + (end - shift - self.value) / math.sqrt(times) if math.isfinite(end) else end
            for end, shift in zip((self.low, self.high), self.shifts, strict=True)
        )
        return Interval(self.value, low, high, self.shifts)


def verdict_of(found: Interval, least: float, *, of_equals: bool = False) -> Verdict:
    """The verdict on one comparison.

    The verdicts are regions of the true difference, and one is given as soon as the interval lies within its region: so
    more data turn an undecided claim into a decided one, and a smaller effect into one of the other direction, and
    nothing else, as long as the interval has the truth.

    Args:
        found: Estimate and interval.
        least: The least difference that confirms a claimed one; for a claim of equals the first that contradicts it.
        of_equals: Whether the claim is that two are the same.

    Examples:
        >>> [str(verdict_of(Interval(v, v - 1, v + 1), 3)) for v in (5, 3.5, 1, -2)]
        ['confirmed', 'undecided', 'smaller than claimed', 'contradicted']
        >>> [str(verdict_of(Interval(v, v - 1, v + 1), 3, of_equals=True)) for v in (1, -3.5, -5)]
        ['equivalent', 'undecided', 'contradicted']
    """
    decided = _decided(found, least, of_equals=of_equals)
    if decided is None:
        can = _decided(found.with_data(MOST_DATA), least, of_equals=of_equals) is not None
        return Verdict.UNDECIDED if can else Verdict.NOT_DECIDABLE
    return decided


def _decided(found: Interval, least: float, *, of_equals: bool) -> Verdict | None:
    if of_equals:
        if max(-found.low, found.high) < least:
            return Verdict.EQUIVALENT
        return Verdict.CONTRADICTED if max(found.low, -found.high) >= least else None
    if found.low >= least:
        return Verdict.CONFIRMED
    if found.high < least:
        return Verdict.CONTRADICTED if found.high < 0 else Verdict.SMALLER
    return None


def holm(decides: Sequence[Callable[[float], bool]]) -> list[float]:
    """The level at which each comparison of a family is judged (Holm 1979, by intervals).

    Args:
        decides: For each whether its interval at a level decides it.

    Examples:
        >>> [round(level, 4) for level in holm([lambda level: level > 0.02, lambda level: level > 0.9])]
        [0.025, 0.05]
    """
    levels, left = [LEVEL] * len(decides), set(range(len(decides)))
    while left:
        level = LEVEL / len(left)
        done = {number for number in left if decides[number](level)}
        for number in left:
            levels[number] = level
        left -= done
        if not done:
            break
    return levels


def together(found: Sequence[Verdict], *, share: float = 1.0) -> Verdict:
    """The verdict on a claim of several comparisons, of which this share has to hold.

    Examples:
        >>> both = [Verdict.CONFIRMED, Verdict.CONTRADICTED]
        >>> str(together(both)), str(together(both, share=0.5))
        ('contradicted', 'confirmed')
    """
    # 0.55 * 20 is above 11.
    needed = math.ceil(share * len(found) - 1e-9)
    counts = {each: found.count(each) for each in Verdict}
    holds, fails = (sum(counts[each] for each in kind) for kind in (HOLDS, FAILS))
    if not found:
        return Verdict.NOT_DECIDABLE
    if holds >= needed:
        return Verdict.EQUIVALENT if counts[Verdict.EQUIVALENT] else Verdict.CONFIRMED
    if len(found) - fails < needed:
        is_other_direction = len(found) - counts[Verdict.CONTRADICTED] < needed
        return Verdict.CONTRADICTED if is_other_direction else Verdict.SMALLER
    open_ = counts[Verdict.UNDECIDED]
    can = holds + open_ >= needed or len(found) - fails - open_ < needed
    return Verdict.UNDECIDED if can else Verdict.NOT_DECIDABLE


def is_true(verdict: Verdict, truth: float, least: float, *, of_equals: bool = False) -> bool:
    """Whether a verdict is right, if the true difference is this; one that leaves the claim open is never wrong."""
    regions = {
        Verdict.CONFIRMED: truth >= least,
        Verdict.SMALLER: truth < least,
        Verdict.CONTRADICTED: abs(truth) >= least if of_equals else truth < 0,
        Verdict.EQUIVALENT: abs(truth) < least,
    }
    return regions.get(verdict, True)


def error_rates(
    truth: float, seeds: Sequence[int], *, of_equals: bool = False, studies: int = 1000
) -> Mapping[int, Mapping[str, float]]:
    """Shares of the verdicts, and of wrong ones, over simulated studies of a claim by number of seeds.

    The spread of a seed's difference is 1, and so is the claimed size less its margin; a study grows seed by seed.

    Args:
        truth: The true difference.
        seeds: Numbers of seeds.
        of_equals: Whether the claim is that two are the same.
        studies: Number of simulated studies.
    """
    values = np.random.default_rng(0).normal(truth, 1.0, (studies, max(seeds)))
    found: dict[int, dict[str, float]] = {}
    for number in seeds:
        given = [
            verdict_of(Difference.of_numbers(each).at(LEVEL), 1.0, of_equals=of_equals) for each in values[:, :number]
        ]
        found[number] = {each.value: given.count(each) / studies for each in Verdict}
        found[number]["wrong"] = float(np.mean([not is_true(each, truth, 1.0, of_equals=of_equals) for each in given]))
    return found
