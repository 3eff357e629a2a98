"""Verdicts on differences: the interval of a difference, and the region that it lies in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from hep_studies.shares import SMALLEST_SPREAD, SharePair, share_interval

#: Probability of one or more wrong verdicts in a family of comparisons.
LEVEL: Final = 0.05


class Verdict(StrEnum):
    """What the runs say about a claim."""

    CONFIRMED = "confirmed"
    """The claimed effect is there, in the claimed size."""
    LARGER = "larger than claimed"
    """The effect is there, and above an amount that the source states, such as "a third"."""
    EQUIVALENT = "equivalent"
    """The difference is within the margin, as claimed."""
    SMALLER = "smaller than claimed"
    """The effect is below the claimed size; its direction may be open."""
    CONTRADICTED = "contradicted"
    """The effect has the other direction, or a claimed equivalence does not hold."""
    UNDECIDED = "undecided"
    """The interval holds differences of several verdicts; up to ten times the data would decide."""
    NOT_DECIDABLE = "not decidable here"
    """More than ten times the data would be needed, or nothing can be compared."""
    WITHDRAWN = "withdrawn"
    """The study takes its judgement back, for a reason that it states, such as faulty runs."""


#: Verdicts by which the claim holds, and by which it fails.
HOLDS: Final = (Verdict.CONFIRMED, Verdict.LARGER, Verdict.EQUIVALENT)
FAILS: Final = (Verdict.SMALLER, Verdict.CONTRADICTED)
#: Verdicts that leave it open.
OPEN: Final = (Verdict.UNDECIDED, Verdict.NOT_DECIDABLE, Verdict.WITHDRAWN)


class Difference(NamedTuple):
    """Mean of paired differences of two methods, and what is known of its error.

    The mean has two statistical errors, since other seeds and other test events would give another
    mean. Their variances come from an analysis of variance of the differences (num_seeds,
    num_events). It gives what a two-way bootstrap estimates, without the bootstrap's bias for few
    seeds. Simulated times add a systematic error, `shifts`.
    """

    mean: float
    """Mean over all seeds and events; NaN if it is not known."""
    seed_variance: float
    """Variance, between seeds, of a seed's mean over the events; NaN for one seed."""
    num_seeds: int
    event_variance: float = 0.0
    """Variance, between events, of an event's expected difference, which all seeds share."""
    num_events: int = 0
    """Number of test events; 0 where there is one number per seed and none per event."""
    shifts: tuple[float, float] = (0.0, 0.0)
    """Lowest and highest error that all seeds share, such as that of simulated times.

    More data do not change it.
    """
    shares: SharePair | None = None
    """The two shares of which it is the difference; None for other numbers."""

    @classmethod
    def from_seeds(
        cls,
        differences: ArrayLike,
        *,
        shifts: tuple[float, float] = (0.0, 0.0),
        smallest_spread: float = SMALLEST_SPREAD,
    ) -> Self:
        """Return the mean of one difference per seed, (num_seeds,), and their variance.

        Without seeds, or with a difference that is not finite, the mean is NaN. `smallest_spread`:
        lower limit of the standard deviation over the seeds.
        """
        values = np.asarray(differences, dtype=np.float64)
        if len(values) == 0 or not np.isfinite(values).all():
            return cls(math.nan, math.nan, len(values))
        variance = math.nan
        if len(values) > 1:
            variance = max(float(values.var(ddof=1)), smallest_spread**2)
        return cls(float(values.mean()), variance, len(values), shifts=shifts)

    @classmethod
    def from_events(cls, differences: ArrayLike) -> Self:
        """Return the mean of one difference per seed and test event, (num_seeds, num_events).

        A difference is modelled as the sum of the overall mean, a part of its seed, a part of its
        event and a residual. The residual variance is part of the variance of the seeds' means,
        so that it is subtracted from that of the events' means and counts once.
        """
        values = np.asarray(differences, dtype=np.float64)
        if len(values) < 2:
            mean = float(values.mean()) if len(values) else math.nan
            return cls(mean, math.nan, len(values))

        num_seeds, num_events = values.shape
        mean = float(values.mean())
        seed_means = values.mean(axis=1)
        event_means = values.mean(axis=0)

        # What the terms of seed and event leave unexplained, (num_seeds, num_events).
        residuals = values - seed_means[:, None] - event_means + mean
        # Removing both sets of means leaves this many degrees of freedom.
        degrees_of_freedom = (num_seeds - 1) * (num_events - 1)
        residual_variance = float(np.square(residuals).sum()) / degrees_of_freedom

        # An accuracy is known no better than to one event, a share of 1 / num_events.
        smallest_variance = 1 / num_events**2
        seed_variance = max(float(seed_means.var(ddof=1)), smallest_variance)
        # The estimate may be negative by chance; then it counts as 0.
        variance_of_event_means = float(event_means.var(ddof=1))
        event_variance = max(variance_of_event_means - residual_variance / num_seeds, 0.0)
        return cls(mean, seed_variance, num_seeds, event_variance, num_events)

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over other seeds and other test events."""
        square = self.seed_variance / self.num_seeds
        if self.num_events > 0:
            square += self.event_variance / self.num_events
        return math.sqrt(square)

    def half_width(self, level: float = LEVEL) -> float:
        """Return half the width of the confidence interval of the mean.

        The interval misses the true difference in the share `level` of studies. Its square is a sum
        over seeds and events: variance of the mean times the squared quantile of Student's t for
        its own degrees of freedom (Banerjee 1961). The shifts that all seeds share are not part of
        it. It is infinite if the variance over seeds is unknown.
        """
        if not math.isfinite(self.seed_variance):
            return math.inf
        square = 0.0
        for variance, size in (
            (self.seed_variance, self.num_seeds),
            (self.event_variance, self.num_events),
        ):
            if size > 1:
                quantile = float(stdtrit(size - 1, level / 2))
                square += variance / size * quantile**2
        return math.sqrt(square)

    def widths(self, level: float) -> tuple[float, float]:
        """Return how far the confidence interval reaches below and above the mean, without shifts.

        Both are the half width, except for shares, whose interval holds only possible differences.
        """
        half_width = self.half_width(level)
        if self.shares is None or not math.isfinite(half_width):
            return half_width, half_width
        return self.shares.widths(self.num_seeds, level)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return both ends of the confidence interval, each moved by its shift."""
        below, above = self.widths(level)
        lowest_shift, highest_shift = self.shifts
        low = self.mean - below + lowest_shift
        high = self.mean + above + highest_shift
        if self.shares is None:
            return low, high
        return max(low, -1.0), min(high, 1.0)


def verdict_of(
    mean: float,
    half_width: float,
    threshold: float,
    *,
    shifts: tuple[float, float] = (0.0, 0.0),
    is_equivalence: bool = False,
    largest: float = math.inf,
) -> Verdict:
    """Return the verdict on a claim from the confidence interval of a measured difference.

    The interval is `mean` plus and minus `half_width`, with its ends moved by `shifts`. The claim
    is decided once all of the interval lies in one of these regions; else it is undecided.

     * A claimed effect is confirmed from `threshold` on, contradicted below 0, and otherwise
       smaller than claimed below `threshold`. Above `largest` it is larger than claimed.
     * A claimed equivalence: the two are equivalent within plus and minus `threshold`; above or
       below that, the claim is contradicted.

    As long as the interval holds the truth, more data only decide an open claim, or turn a smaller
    effect into one of the other direction.

    Examples:
        >>> [str(verdict_of(mean, 1, 3)) for mean in (5, 3.5, 1, -2)]
        ['confirmed', 'undecided', 'smaller than claimed', 'contradicted']
        >>> [str(verdict_of(mean, 1, 3, is_equivalence=True)) for mean in (1, -3.5, -5)]
        ['equivalent', 'undecided', 'contradicted']
    """
    low = mean - half_width + shifts[0]
    high = mean + half_width + shifts[1]
    if is_equivalence:
        return _equivalence_region(low, high, threshold)
    return _effect_region(low, high, threshold, largest=largest)


def _effect_region(low: float, high: float, threshold: float, *, largest: float) -> Verdict:
    """Return the verdict on a claimed effect from its interval low..high.

    An interval at or above the threshold confirms the effect, and one below 0 contradicts it. Any
    other below the threshold shows that it is smaller than claimed, also where it contains 0. One
    above the largest effect that is still of the claimed size shows that it is larger.
    """
    if low > largest:
        return Verdict.LARGER
    if low >= threshold:
        return Verdict.CONFIRMED
    if high < 0:
        return Verdict.CONTRADICTED
    return Verdict.SMALLER if high < threshold else Verdict.UNDECIDED


def _equivalence_region(low: float, high: float, threshold: float) -> Verdict:
    """Return the verdict on a claimed equivalence from its interval low..high.

    An interval within plus and minus the threshold shows the equivalence. One that lies wholly
    above or wholly below that contradicts it.
    """
    if -threshold < low and high < threshold:
        return Verdict.EQUIVALENT
    if low >= threshold or high <= -threshold:
        return Verdict.CONTRADICTED
    return Verdict.UNDECIDED


def holm_levels(decides_at: Sequence[Callable[[float], bool]]) -> list[float]:
    """Return the level of each comparison so that any is wrong with a probability of at most LEVEL.

    Holm (1979) divides LEVEL by the number of comparisons that are still undecided. Those that are
    decided at this level keep it. The others share LEVEL anew, until none is left or none is
    decided. `decides_at`: for each comparison, a function that tells whether its interval at a
    level decides it.

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


def combine_verdicts(verdicts: Sequence[Verdict], *, share: float = 1.0) -> Verdict:
    """Return the verdict on a claim of several comparisons, of which this share must hold.

    A claim about all comparisons holds if all hold, and fails if one fails. A smaller share is that
    of many settings, of which the comparisons are a few. The claim holds if the interval of the
    share that holds begins at the claimed share or above, and fails if that of the share that does
    not fail ends below it. Else it is undecided. Without comparisons it is not decidable.

    Examples:
        >>> verdicts = [Verdict.CONFIRMED, Verdict.CONTRADICTED]
        >>> str(combine_verdicts(verdicts)), str(combine_verdicts(verdicts, share=0.5))
        ('contradicted', 'undecided')
    """
    if not verdicts:
        return Verdict.NOT_DECIDABLE
    num_all = len(verdicts)

    def is_enough(num_holding: int) -> bool:
        if share == 1:
            return num_holding == num_all
        return share_interval(num_holding, num_all, LEVEL).low >= share

    def is_too_few(num_not_failing: int) -> bool:
        if share == 1:
            return num_not_failing < num_all
        return share_interval(num_not_failing, num_all, LEVEL).high < share

    num_holding = sum(verdict in HOLDS for verdict in verdicts)
    num_failing = sum(verdict in FAILS for verdict in verdicts)
    num_contradicted = verdicts.count(Verdict.CONTRADICTED)

    if is_enough(num_holding):
        # Of several verdicts the milder one stands: larger than claimed only if all are.
        milder = (Verdict.EQUIVALENT, Verdict.CONFIRMED)
        return next((verdict for verdict in milder if verdict in verdicts), Verdict.LARGER)
    # Of the failures, a smaller effect is the milder verdict.
    if is_too_few(num_all - num_failing):
        is_contradicted = is_too_few(num_all - num_contradicted)
        return Verdict.CONTRADICTED if is_contradicted else Verdict.SMALLER
    return Verdict.UNDECIDED
