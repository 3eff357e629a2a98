"""The score that separates the signal from backgrounds, and its cuts in all replicas.

Replicas are copies of the events with random weights, see `models.evaluation.bootstrap`; arrays of
1 + num_replicas entries have the measurement first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Replicas, ReplicatedInterval, sum_intervals
from models.evaluation.intervals import Floats, effective_numbers, first_reaching, thresholds

#: Highest number of evenly spread thresholds. With more different scores, only some are thresholds.
_MOST_THRESHOLDS: Final = 2000


class Mixture(NamedTuple):
    """Classes that count together, such as all backgrounds."""

    fractions: Mapping[int, float]
    """Fraction of each class, by its label; they add up to 1."""
    description: str
    """The mixture in words, for reports."""


def discriminant(
    probabilities: Floats, *, signal: Mapping[int, float], fractions: Mapping[int, float]
) -> Floats:
    """Compute the score s / (s + b), s = sum f_s p_s and b = sum f_b p_b, or 0.5 if both are 0.

    The sums run over the classes of the signal and of the backgrounds, with fractions f and
    predicted probabilities p. The score rises with s / b. If the probabilities are right for
    classes in equal parts, it is the best possible score against backgrounds in these fractions
    (lemma of Neyman and Pearson, 1933). Against one background it is equivalent to the likelihood
    ratio of the two.

    Args:
        probabilities: (num_events, num_classes).
        signal: Fraction of each signal class, by label.
        fractions: Fraction of each background class, by label.

    Returns:
        (num_events,) scores from 0 to 1.
    """
    s = _weighted_sum(probabilities, signal)
    b = _weighted_sum(probabilities, fractions)
    total = s + b
    undecided = np.full(len(s), 0.5)
    return np.asarray(np.divide(s, total, out=undecided, where=total > 0))


def _weighted_sum(probabilities: Floats, fractions: Mapping[int, float]) -> Floats:
    """Sum the probabilities of some classes times their fractions, (num_events,)."""
    total = np.zeros(len(probabilities))
    for label, fraction in fractions.items():
        total += fraction * probabilities[:, label]
    return total


def log_odds(score: Floats) -> Floats:
    """Compute log10(s / b) of scores s / (s + b).

    Scores closer to 0 or 1 than 1e-12 become 1e-12 or 1 - 1e-12, so that the result is finite.
    """
    inside = np.clip(score, 1e-12, 1 - 1e-12)
    return np.asarray(np.log10(inside / (1 - inside)), dtype=np.float64)


def odds_range(odds: Floats) -> tuple[float, float]:
    """Return ends of an axis for log odds: whole numbers beyond the 1 % and 99 % quantiles.

    The axis is at least one unit long.
    """
    low = np.floor(np.quantile(odds, 0.01))
    high = np.ceil(np.quantile(odds, 0.99))
    return float(low), float(max(high, low + 1))


class ReplicatedScore:
    """A score of all events, and what passes its cuts in all replicas.

    Each of the `shares` sets a cut, separately in each replica: the tightest one that at least this
    share of the signal passes. With a `background` it is instead the loosest cut that at most this
    share of that mixture passes. Cuts are indices of `thresholds`, values of the score in falling
    order. A score that is not finite is an `UndefinedMetricError`.

    Args:
        replicas: The events with their random weights.
        scores: (num_events,), higher for events that are more like signal.
        signal: Fraction of each signal class, by label; they add up to 1.
        shares: (num_points,) signal or background efficiencies; empty if only areas are needed.
        background: Fraction of each background class whose efficiency sets the cuts; None for cuts
            at signal efficiencies.
    """

    def __init__(
        self,
        replicas: Replicas,
        scores: Floats,
        signal: Mapping[int, float],
        shares: Floats,
        *,
        background: Mapping[int, float] | None = None,
    ) -> None:
        if not np.isfinite(scores).all():
            raise UndefinedMetricError("a score is not finite; the model or its input is damaged")
        self.replicas = replicas
        self.signal = signal
        self.shares = shares
        self.background = background
        self.thresholds = self._choose_thresholds(scores)
        """(num_thresholds,) values of the score in falling order; a cut is an index of them."""
        self.bins: NDArray[np.int64] = np.searchsorted(-self.thresholds, -scores)
        """(num_events,) index of the highest threshold that an event passes."""

    @property
    def _cut_mixture(self) -> Mapping[int, float]:
        """The mixture whose shares set the cuts."""
        return self.signal if self.background is None else self.background

    def _choose_thresholds(self, scores: Floats) -> Floats:
        """Choose the scores that serve as thresholds, (num_thresholds,) in falling order.

        They are all different scores, if these are few. Else they are scores evenly spread in rank,
        and those at which the measured efficiencies are reached exactly.
        """
        values = np.unique(scores)
        if len(values) > _MOST_THRESHOLDS:
            weights = self.mixture_weights(self._cut_mixture)
            is_counted = weights != 0
            shares = self._shares_in_replicas()
            exact = thresholds(scores[is_counted], weights[is_counted], shares)
            exact_index = np.searchsorted(values, exact)
            # The next higher score has less than the share above it: cuts on a background need this
            # one.
            last_index = len(values) - 1
            next_index = np.minimum(exact_index + 1, last_index)
            even_index = np.linspace(0, last_index, _MOST_THRESHOLDS).astype(np.int64)
            index = np.union1d(even_index, np.append(exact_index, next_index))
            values = values[index]
        # `values` rise, thresholds fall.
        return values[::-1]

    def _shares_in_replicas(self) -> Floats:
        """Return the shares that need exact thresholds; for backgrounds also shares around them.

        Few backgrounds pass, so their threshold varies much between the replicas. There are 60
        further shares from 0.3 to 3 times each share.
        """
        if self.background is None:
            return self.shares
        factors = np.append(np.geomspace(0.3, 3, 60), 1.0)
        shares = np.outer(self.shares, factors).ravel()
        return np.minimum(shares, 1.0)

    def mixture_weights(self, fractions: Mapping[int, float]) -> Floats:
        """Scale the event weights so that each class adds up to its fraction of a mixture.

        The (num_events,) weights are 0 for events of other classes. A stratum holds the events of
        one class in one sample; each sample keeps its share of the class.
        """
        weights = np.zeros(len(self.replicas.weights))
        for label, fraction in fractions.items():
            for stratum in self.replicas.strata_of_class(label):
                event_weights = self.replicas.weights[stratum.rows]
                weights[stratum.rows] = (
                    fraction * event_weights * stratum.fraction / stratum.totals[0]
                )
        return weights

    def measured_share(self, fractions: Mapping[int, float]) -> Floats:
        """Compute the measured share of a mixture at or above each threshold, (num_thresholds,)."""
        sums, _ = self._sums_at_thresholds(fractions)
        return np.cumsum(sums)

    def effective_passing(self, fractions: Mapping[int, float]) -> Floats:
        """Count the events of a mixture at or above each threshold, (num_thresholds,).

        The effective number sum^2 / sum of squares counts weighted events like equal ones.
        """
        sums, squares = self._sums_at_thresholds(fractions)
        return effective_numbers(np.cumsum(sums), np.cumsum(squares))

    def effective_failing(self, fractions: Mapping[int, float]) -> Floats:
        """Count the events of a mixture below each threshold, (num_thresholds,).

        The effective number sum^2 / sum of squares counts weighted events like equal ones.
        """
        sums, squares = self._sums_at_thresholds(fractions)
        # From the lowest threshold up: weights that pass, however heavy, leave no rounding error.
        return effective_numbers(_sums_of_following(sums), _sums_of_following(squares))

    def _sums_at_thresholds(self, fractions: Mapping[int, float]) -> tuple[Floats, Floats]:
        """Sum a mixture's weights, and their squares, from each threshold up to the next one.

        Both arrays are (num_thresholds,), from the highest threshold down. An event counts at the
        highest threshold that it passes.
        """
        weights = self.mixture_weights(fractions)
        num_thresholds = len(self.thresholds)
        sums = np.bincount(self.bins, weights, num_thresholds)
        squares = np.bincount(self.bins, np.square(weights), num_thresholds)
        return sums.astype(np.float64), squares.astype(np.float64)

    def class_shares_above(self, label: int) -> Floats:
        """Compute the share of a class at or above each threshold, in all replicas.

        A stratum holds the events of the class in one sample. The result is the mean over the
        strata, weighted by their shares in the class, (num_thresholds, 1 + num_replicas). The first
        column is the measurement, the others are copies of the events with random weights.
        """
        num_thresholds = len(self.thresholds)
        num_columns = len(self.replicas.strata[0].totals)
        shares = np.zeros((num_thresholds, num_columns))
        for stratum in self.replicas.strata_of_class(label):
            sums = self.replicas.sums(stratum, self.bins, num_thresholds)
            shares += stratum.fraction * sums / stratum.totals
        # Thresholds fall, so the running sum holds everything at or above each of them.
        return np.cumsum(shares, axis=0)

    def mixture_shares_above(self, fractions: Mapping[int, float]) -> Floats:
        """Compute the share of a mixture at or above each threshold, in all replicas.

        The result is (num_thresholds, 1 + num_replicas), with the measurement in the first column.
        """
        shares = [
            fraction * self.class_shares_above(label) for label, fraction in fractions.items()
        ]
        return np.asarray(sum(shares))

    @cached_property
    def cuts(self) -> NDArray[np.int64]:
        """Index of the threshold of each share in each replica, (num_points, 1 + num_replicas).

        The first column is the measurement; replicas are copies of the events with random weights.
        For signal the cut is the first, so highest, threshold at which the share is reached. For a
        background it is the last, so lowest, threshold at which the share is not exceeded.
        """
        shares_above = self.mixture_shares_above(self._cut_mixture)
        # With negative weights a share may fall from one threshold to the next; the highest share
        # so far never does. Rows are replicas.
        highest_so_far = np.maximum.accumulate(shares_above, axis=0)
        highest_shares = np.ascontiguousarray(highest_so_far.T)
        if self.background is None:
            first = [first_reaching(highest, self.shares) for highest in highest_shares]
            return np.stack(first, axis=1)
        # The small margin keeps rounding from excluding a share that is exactly reached.
        most = self.shares * (1 + 1e-9)
        # `side="right"` counts the thresholds whose share is not above the limit.
        last = [np.searchsorted(highest, most, side="right") - 1 for highest in highest_shares]
        # If even the highest threshold lets too much pass, it is the cut (index 0).
        return np.maximum(np.stack(last, axis=1), 0)

    def area(self, fractions: Mapping[int, float]) -> Floats:
        """Compute the area under the ROC curve against backgrounds, (1 + num_replicas,).

        It is the probability that a signal event has a higher score than a background event. Pairs
        of equal scores count half. `fractions` mix the backgrounds, by label. The first entry is
        the measurement; the others are those of copies of the events with random weights.
        """
        signal_above = self.mixture_shares_above(self.signal)
        num_columns = signal_above.shape[1]
        above_highest = np.zeros((1, num_columns))
        # Trapezoids: the mean share of the signal between a threshold and the next higher one.
        next_higher = np.vstack([above_highest, signal_above[:-1]])
        mean_signal = (signal_above + next_higher) / 2
        area = np.zeros(num_columns)
        for label, fraction in fractions.items():
            background_above = self.class_shares_above(label)
            # Each step is the share of the background between a threshold and the next higher one.
            background_steps = np.diff(background_above, axis=0, prepend=0.0)
            class_area = (background_steps * mean_signal).sum(axis=0)
            area += fraction * class_area
        return area

    @cached_property
    def _sample_shares(self) -> dict[tuple[int, str], ReplicatedInterval]:
        """Share of each class in each sample that passes the cuts, by (label, sample name)."""
        return self.sample_shares_at(self.cuts)

    def sample_shares_at(
        self, cuts: NDArray[np.int64]
    ) -> dict[tuple[int, str], ReplicatedInterval]:
        """Compute the share of each class in each sample that passes some cuts, with its interval.

        `cuts` are indices of thresholds, (num_points, 1 + num_replicas): one column for the
        measurement, and one for each replica, a copy of the events with random weights. The keys
        are (label, name of the sample).
        """
        shares = {}
        num_thresholds = len(self.thresholds)
        for stratum in self.replicas.strata:
            sums = self.replicas.sums(stratum, self.bins, num_thresholds)
            squares = np.square(self.replicas.weights[stratum.rows])
            squares_in_bins = np.bincount(self.bins[stratum.rows], squares, num_thresholds)
            # Thresholds fall, so running sums over them are sums at or above each threshold.
            sums_above = np.cumsum(sums, axis=0)
            squares_above = np.cumsum(squares_in_bins).astype(np.float64)
            # Each replica reads its sum at its own cut.
            passing = np.take_along_axis(sums_above, cuts, axis=0)
            measured_cuts = cuts[:, 0]
            passing2 = squares_above[measured_cuts]
            share = self.replicas.shares_passing(stratum, passing, passing2)
            shares[stratum.label, stratum.sample] = share
        return shares

    def sample_share(self, label: int, sample: str) -> ReplicatedInterval | None:
        """Return the share of a class in one sample that passes the cuts; None without events.

        A sample that is joined to another one has the share of both.
        """
        stratum_name = self.replicas.stratum_names.get((label, sample))
        if stratum_name is None:
            return None
        return self._sample_shares[label, stratum_name]

    def class_share(self, label: int) -> ReplicatedInterval:
        """Compute the share of a class that passes the cuts: the weighted mean over its samples."""
        terms = []
        for stratum in self.replicas.strata_of_class(label):
            share = self._sample_shares[label, stratum.sample]
            terms.append(share.scaled(stratum.fraction))
        return sum_intervals(terms)

    def mixture_share(self, fractions: Mapping[int, float]) -> ReplicatedInterval:
        """Compute the share of a mixture that passes the cuts."""
        return sum_intervals(
            self.class_share(label).scaled(fraction) for label, fraction in fractions.items()
        )


def _sums_of_following(values: Floats) -> Floats:
    """For each value return the sum of all values that follow it; 0 for the last one.

    It adds from the end, so large values at the beginning leave no rounding error.
    """
    sums_from_end = np.cumsum(values[::-1])
    # Reversed without its last entry, the sum from each value on becomes that from the next value
    # on.
    return np.append(sums_from_end[-2::-1], 0.0)
