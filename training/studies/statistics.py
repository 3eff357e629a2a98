"""Means over seeds, paired differences over seeds and test events, and the verdict on each difference of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize.elementwise import find_root
from scipy.special import ndtri, stdtrit

Floats = NDArray[np.float64]

#: Probability of one or more false verdicts of a kind in a table.
LEVEL: Final = 0.05
#: Differences of accuracies below this count as none (0.1 points).
MARGIN: Final = 0.001
#: Probability with which the planned seeds or events show a difference of the measured size.
_POWER: Final = 0.8
_SMALLEST_P: Final = 1e-100
_MOST_SEEDS: Final = 1000
#: Number of events of a difference without events: they add nothing to its error.
_NO_EVENTS: Final = 10**9
_SMALLEST_SPREAD: Final = 1e-6


class Mean(NamedTuple):
    """A mean over seeds."""

    value: float
    spread: float
    """Standard deviation over the seeds; NaN for one seed."""
    error: float
    """Standard error of the mean."""
    num_seeds: int


class Difference(NamedTuple):
    """Mean difference of two methods' accuracies over seeds and test events, and the parts of its variance.

    Seeds and events are both samples: other seeds and other events of the same kind would give other differences. The
    parts come from the analysis of variance of the differences (num_seeds, num_events), which gives what a bootstrap
    over seeds and events estimates, without its bias for few seeds. All fields of numbers may be arrays of one shape.
    """

    value: Floats
    of_seed: Floats
    """Variance of a seed's mean difference, as far as not due to the events: at least that of one event."""
    of_event: Floats
    """Variance of an event's difference, common to all seeds."""
    of_both: Floats
    """Variance that is neither the seed's nor the event's alone."""
    num_seeds: int
    num_events: int
    margin: float = MARGIN
    """Differences below this count as none."""

    @classmethod
    def of_numbers(cls, values: ArrayLike, margin: float) -> Self:
        """The difference of a number of each run, (num_seeds,): seeds are the only sample.

        Examples:
            >>> found = Difference.of_numbers([0.2, 0.3], 0.1)
            >>> round(float(found.value), 3), round(float(found.half_width()), 3)
            (0.25, 0.635)
        """
        given = np.asarray(values, dtype=np.float64)
        nothing = np.zeros(())
        # Simulated times may be equal to the last bit: a spread of 0 would make every difference certain.
        with np.errstate(invalid="ignore"):
            spread = np.maximum(given.var(ddof=1), _SMALLEST_SPREAD**2) if len(given) > 1 else np.array(np.nan)
        return cls(np.asarray(given.mean()), spread, nothing, nothing, len(given), _NO_EVENTS, margin)

    @classmethod
    def of(cls, table: ArrayLike) -> Self:
        """The difference of each table (..., num_seeds, num_events) of -1, 0 and 1: this right, minus other right.

        Where events have weights, each number is multiplied by the event's weight over the mean weight. With one seed
        the variances are NaN.

        Examples:
            >>> found = Difference.of([[1, 0, 1, 0], [1, 0, 0, 0]])
            >>> float(found.value), found.num_seeds, found.num_events
            (0.375, 2, 4)
        """
        values = np.asarray(table, dtype=np.float32)
        seeds, events = values.shape[-2:]
        by_seed = values.mean(axis=-1, dtype=np.float64)
        by_event = values.mean(axis=-2, dtype=np.float64)
        value = by_seed.mean(axis=-1)
        if seeds == 1:
            unknown = np.full_like(value, np.nan)
            return cls(value, unknown, unknown, unknown, seeds, events)
        # No spread of an accuracy is known better than one event of the mean weight.
        of_seed = np.maximum(by_seed.var(axis=-1, ddof=1), 1 / events**2)
        squares = np.square(values).sum(axis=(-2, -1), dtype=np.float64)
        squares -= events * np.square(by_seed).sum(axis=-1) + seeds * np.square(by_event).sum(axis=-1)
        of_both = (squares + seeds * events * np.square(value)) / ((seeds - 1) * (events - 1))
        of_event = np.maximum(by_event.var(axis=-1, ddof=1) - of_both / seeds, 0)
        return cls(value, of_seed, of_event, of_both, seeds, events)

    def half_width(self, level: ArrayLike = LEVEL) -> Floats:
        """Half of the interval that misses the true difference with at most this probability.

        Each part of the variance has the quantile of Student's t for its own degrees of freedom (Banerjee 1961), which
        stays safe for few seeds.
        """
        seeds, events = (stdtrit(n - 1, np.asarray(level) / 2) ** 2 / n for n in (self.num_seeds, self.num_events))
        return np.asarray(np.sqrt(seeds * self.of_seed + events * self.of_event))

    @property
    def p_different(self) -> Floats:
        """Probability of a difference as large as this, or larger, if there is none (two-sided)."""
        return self._p_of(np.abs(self.value))

    @property
    def p_equivalent(self) -> Floats:
        """Probability of a difference as close to 0 as this, or closer, if it is `margin` (two one-sided tests)."""
        return self._p_one_sided(self.margin - np.abs(self.value))

    @property
    def p_beyond(self) -> Floats:
        """Probability of a difference as far from 0 as this, or further, if it is `margin` (one-sided)."""
        return self._p_one_sided(np.abs(self.value) - self.margin)

    def _p_one_sided(self, room: Floats) -> Floats:
        """Probability that the difference is wrong by this, or more, in one direction; 1 for nothing."""
        return np.where(room > 0, self._p_of(np.maximum(room, 0)) / 2, 1.0)

    def _p_of(self, distance: Floats) -> Floats:
        """Level at which half the interval is this distance; 1 with one seed."""
        if self.num_seeds == 1 or not np.isfinite(self.value).all():
            return np.ones_like(self.value)

        def beyond(log_level: Floats, distance: Floats, of_seed: Floats, of_event: Floats) -> Floats:
            return self._replace(of_seed=of_seed, of_event=of_event).half_width(np.exp(log_level)) - distance

        lowest = math.log(_SMALLEST_P)
        args = (np.clip(distance, self.half_width(1.0), self.half_width(_SMALLEST_P)), self.of_seed, self.of_event)
        return np.asarray(np.exp(find_root(beyond, (lowest, 0.0), args=args).x))

    @property
    def from_margin(self) -> float:
        """How far the difference is from the margin."""
        return abs(self.margin - abs(float(self.value)))

    @property
    def decidable(self) -> float:
        """The larger of its distances from 0 and, below the margin, from the margin: either would decide."""
        return max(abs(float(self.value)), self.margin - abs(float(self.value)))

    def variance_for(self, distance: float, num_comparisons: int) -> float:
        """Variance of the difference that mostly shows this distance, in a table of some comparisons."""
        quantiles = ndtri(1 - LEVEL / 2 / num_comparisons) + ndtri(_POWER)
        return float((max(distance, _SMALLEST_SPREAD) / quantiles) ** 2)

    def excess(self, distance: float, num_comparisons: int) -> float:
        """Factor by which its variance is too large for that; infinite if it is unknown."""
        found = float(self.of_seed / self.num_seeds + self.of_event / self.num_events)
        return found / self.variance_for(distance, num_comparisons) if np.isfinite(self.value + found) else math.inf

    def needed(self, distance: float, num_comparisons: int) -> str:
        """Seeds or test events that decide, if the true difference is the measured one: in words.

        Args:
            distance: What has to be shown: from 0, or from the margin.
            num_comparisons: Number of comparisons in the table.
        """
        if self.num_seeds == 1:
            return "2 or more seeds"
        if not np.isfinite(self.value):
            return "runs that neither diverge nor end too early"
        goal = self.variance_for(distance, num_comparisons)
        seed, event, both = float(self.of_seed), float(self.of_event), float(self.of_both)
        left_for_seeds = goal - event / self.num_events
        left_for_events = goal - max(seed - both / self.num_events, 0.0) / self.num_seeds
        words = []
        if seed < _MOST_SEEDS * left_for_seeds:
            words.append(f"{max(_rounded(seed / left_for_seeds), self.num_seeds + 1):,} seeds")
        events = _rounded((event + both / self.num_seeds) / left_for_events) if left_for_events > 0 else 0
        # Fewer than there are would not decide: then the few seeds are the cause.
        if events > self.num_events:
            words.append(f"{events:,} test events")
        if words:
            return "about " + " or ".join(words)
        if self.num_events == _NO_EVENTS:
            return f"about {_rounded(seed / goal):,} seeds"
        times = self.excess(distance, num_comparisons)
        return f"about {_rounded(times * self.num_seeds):,} seeds and {_rounded(times * self.num_events):,} test events"


class Word(StrEnum):
    """What may be said of a difference."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


class Judgement(NamedTuple):
    """The verdict on a difference, with the probabilities corrected for the number of comparisons in its table."""

    difference: Difference
    word: Word
    p_different: float
    p_equivalent: float
    p_beyond: float
    """That of a difference within the margin."""
    num_comparisons: int
    """Number of comparisons in its table."""

    @property
    def needed(self) -> str:
        """What an undecided difference needs; empty for the others."""
        if self.word is not Word.UNDECIDED:
            return ""
        return self.difference.needed(self.difference.decidable, self.num_comparisons)

    def __str__(self) -> str:
        return f"{self.word} (needs {self.needed})" if self.needed else str(self.word)


def verdicts(differences: Sequence[Difference]) -> list[Judgement]:
    """The verdicts on all comparisons of a table.

    Examples:
        >>> always = Difference.of(np.tile([1, 1, 1, 0], (3, 250)))
        >>> [str(each) for each in verdicts([always])]
        ['better']
    """
    different = holm([float(each.p_different) for each in differences])
    equivalent = holm([float(each.p_equivalent) for each in differences])
    beyond = holm([float(each.p_beyond) for each in differences])
    found = []
    for each, p, q, r in zip(differences, different, equivalent, beyond, strict=True):
        word = Word.EQUIVALENT if q < LEVEL else Word.UNDECIDED
        if p < LEVEL:
            word = Word.BETTER if each.value > 0 else Word.WORSE
        found.append(Judgement(each, word, float(p), float(q), float(r), len(differences)))
    return found


def holm(probabilities: ArrayLike) -> Floats:
    """Probabilities (..., num_comparisons), corrected for their number (Holm 1979).

    Examples:
        >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    given = np.asarray(probabilities, dtype=np.float64)
    order = np.argsort(given, axis=-1)
    ordered = np.take_along_axis(given, order, axis=-1) * np.arange(given.shape[-1], 0, -1)
    found = np.empty_like(given)
    np.put_along_axis(found, order, np.minimum(np.maximum.accumulate(ordered, axis=-1), 1), axis=-1)
    return found


def mean_of(values: Sequence[float]) -> Mean:
    """Mean, spread and error of some values.

    Examples:
        >>> mean_of([0.9, 0.92])
        Mean(value=0.91, spread=0.014142135623730963, error=0.010000000000000009, num_seeds=2)
    """
    number = len(values)
    spread = float(np.std(values, ddof=1)) if number > 1 else math.nan
    return Mean(float(np.mean(values)), spread, spread / math.sqrt(number), number)


def binomial_error(accuracy: float, num_events: float) -> float:
    """Binomial error of an accuracy on `num_events` events.

    Examples:
        >>> round(binomial_error(0.9, 900), 4)
        0.01
    """
    return math.sqrt(accuracy * (1 - accuracy) / num_events)


def points(share: float, *, sign: bool = False) -> str:
    """A difference of accuracies in percentage points.

    Examples:
        >>> points(0.0123)
        '1.23 points'
    """
    return f"{100 * share:{'+' if sign else ''}.2f} points"


def _rounded(number: float) -> int:
    """A number of seeds or events to two digits, upwards.

    Examples:
        >>> _rounded(12_345)
        13000
    """
    unit = int(10 ** max(math.floor(math.log10(max(number, 1))) - 1, 0))
    return math.ceil(number / unit) * unit
