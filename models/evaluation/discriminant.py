"""The score that separates the signal from backgrounds, and its cuts in all replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Replicas, ReplicatedInterval, sum_intervals
from models.evaluation.intervals import Floats, effective_numbers, first_reaching, thresholds

#: Highest number of thresholds in the replicas. With more different scores, only some are
#: thresholds.
_MOST_THRESHOLDS: Final = 2000


class Mixture(NamedTuple):
    """Classes that count together."""

    fractions: Mapping[int, float]
    """Fraction of each class; they add up to 1."""
    description: str
    """The mixture in words."""


def discriminant(
    probabilities: Floats, *, signal: Mapping[int, float], fractions: Mapping[int, float]
) -> Floats:
    """The score s / (s + b), s = sum f_s p_s and b = sum f_b p_b, or 0.5 if both are 0.

    It rises with s / b. If the probabilities are right for classes in equal parts, it is the best
    possible score against backgrounds in these fractions (lemma of Neyman and Pearson, 1933).
    Against one background it is the likelihood ratio of the two.
    From (num_events, num_classes) probabilities to (num_events,).
    """
    s = _weighted_sum(probabilities, signal)
    b = _weighted_sum(probabilities, fractions)
    return np.asarray(np.divide(s, s + b, out=np.full(len(s), 0.5), where=s + b > 0))


def _weighted_sum(probabilities: Floats, fractions: Mapping[int, float]) -> Floats:
    total = np.zeros(len(probabilities))
    for label, fraction in fractions.items():
        total += fraction * probabilities[:, label]
    return total


def log_odds(score: Floats) -> Floats:
    """log10(s / b) of scores s / (s + b).

    Scores of 0 and 1 become the last ones that floats distinguish.
    """
    inside = np.clip(score, 1e-12, 1 - 1e-12)
    return np.asarray(np.log10(inside / (1 - inside)), dtype=np.float64)


def odds_range(odds: Floats) -> tuple[float, float]:
    """Ends of an axis that holds all but a hundredth of some log odds on either side."""
    low, high = np.floor(np.quantile(odds, 0.01)), np.ceil(np.quantile(odds, 0.99))
    return float(low), float(max(high, low + 1))


class ReplicatedScore:
    """A score of all events, and what passes its cuts in all replicas.

    The (num_events,) scores are higher for events that are more like signal. Each of the `shares`
    sets a cut. At least this share of the signal's mixture passes it, or, with a `background`, at
    most this share of that mixture. A score that is not finite is an `UndefinedMetricError`.
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
        """(num_thresholds,) falling."""
        self.bins: NDArray[np.int64] = np.searchsorted(-self.thresholds, -scores)
        """(num_events,) index of the highest threshold that an event passes."""

    @property
    def _cut_mixture(self) -> Mapping[int, float]:
        """The mixture whose shares set the cuts."""
        return self.signal if self.background is None else self.background

    def _choose_thresholds(self, scores: Floats) -> Floats:
        values = np.unique(scores)
        if len(values) > _MOST_THRESHOLDS:
            weights = self.mixture_weights(self._cut_mixture)
            is_counted = weights != 0
            exact = thresholds(scores[is_counted], weights[is_counted], self._shares_in_replicas())
            exact_index = np.searchsorted(values, exact)
            # The next higher score has less than the share above it.
            next_index = np.minimum(exact_index + 1, len(values) - 1)
            even_index = np.linspace(0, len(values) - 1, _MOST_THRESHOLDS).astype(np.int64)
            values = values[np.union1d(even_index, np.append(exact_index, next_index))]
        return values[::-1]

    def _shares_in_replicas(self) -> Floats:
        """The shares, and for backgrounds others around them.

        Few backgrounds pass, so that their threshold differs much between the replicas.
        """
        if self.background is None:
            return self.shares
        factors = np.append(np.geomspace(0.3, 3, 60), 1.0)
        return np.minimum(np.outer(self.shares, factors).ravel(), 1.0)

    def mixture_weights(self, fractions: Mapping[int, float]) -> Floats:
        """(num_events,) weights that add up to the fractions of a mixture; 0 outside it."""
        weights = np.zeros(len(self.replicas.weights))
        for label, fraction in fractions.items():
            for stratum in self.replicas.strata_of_class(label):
                event_weights = self.replicas.weights[stratum.rows]
                weights[stratum.rows] = (
                    fraction * event_weights * stratum.fraction / stratum.totals[0]
                )
        return weights

    def measured_share(self, fractions: Mapping[int, float]) -> Floats:
        """Measured share of a mixture at or above each threshold, (num_thresholds,)."""
        sums, _ = self._sums_at_thresholds(fractions)
        return np.cumsum(sums)

    def effective_passing(self, fractions: Mapping[int, float]) -> Floats:
        """Effective number of a mixture's events at or above each threshold, (num_thresholds,)."""
        sums, squares = self._sums_at_thresholds(fractions)
        return effective_numbers(np.cumsum(sums), np.cumsum(squares))

    def effective_failing(self, fractions: Mapping[int, float]) -> Floats:
        """Effective number of a mixture's events below each threshold, (num_thresholds,)."""
        sums, squares = self._sums_at_thresholds(fractions)
        # From the lowest threshold up: weights that pass, however heavy, leave no rounding error.
        return effective_numbers(_sums_of_following(sums), _sums_of_following(squares))

    def _sums_at_thresholds(self, fractions: Mapping[int, float]) -> tuple[Floats, Floats]:
        """Sums of a mixture's weights, and of their squares, from each threshold up to the next."""
        weights, num_thresholds = self.mixture_weights(fractions), len(self.thresholds)
        sums = np.bincount(self.bins, weights, num_thresholds)
        squares = np.bincount(self.bins, np.square(weights), num_thresholds)
        return sums.astype(np.float64), squares.astype(np.float64)

    def class_shares_above(self, label: int) -> Floats:
        """Share of a class at or above each threshold, (num_thresholds, 1 + num_replicas)."""
        shares = np.zeros((len(self.thresholds), len(self.replicas.strata[0].totals)))
        for stratum in self.replicas.strata_of_class(label):
            sums = self.replicas.sums(stratum, self.bins, len(self.thresholds))
            shares += stratum.fraction * sums / stratum.totals
        return np.cumsum(shares, axis=0)

    def mixture_shares_above(self, fractions: Mapping[int, float]) -> Floats:
        """Share of a mixture at or above each threshold, (num_thresholds, 1 + num_replicas)."""
        shares = [
            fraction * self.class_shares_above(label) for label, fraction in fractions.items()
        ]
        return np.asarray(sum(shares))

    @cached_property
    def cuts(self) -> NDArray[np.int64]:
        """Index of the threshold of each share in each replica, (num_points, 1 + num_replicas)."""
        shares_above = self.mixture_shares_above(self._cut_mixture)
        # With negative weights a share may fall; the highest so far always rises.
        highest_shares = np.ascontiguousarray(np.maximum.accumulate(shares_above, axis=0).T)
        if self.background is None:
            first = [first_reaching(highest, self.shares) for highest in highest_shares]
            return np.stack(first, axis=1)
        most = self.shares * (1 + 1e-9)
        last = [np.searchsorted(highest, most, side="right") - 1 for highest in highest_shares]
        return np.maximum(np.stack(last, axis=1), 0)

    def area(self, fractions: Mapping[int, float]) -> Floats:
        """Area under the ROC curve against a mixture, (1 + num_replicas,).

        Pairs of equal scores count half.
        """
        signal_above = self.mixture_shares_above(self.signal)
        # Trapezoids: the mean share of the signal between a threshold and the next higher one.
        next_higher = np.vstack([np.zeros((1, signal_above.shape[1])), signal_above[:-1]])
        mean_signal = (signal_above + next_higher) / 2
        area = np.zeros(signal_above.shape[1])
        for label, fraction in fractions.items():
            background_steps = np.diff(self.class_shares_above(label), axis=0, prepend=0.0)
            area += fraction * (background_steps * mean_signal).sum(axis=0)
        return area

    @cached_property
    def _sample_shares(self) -> dict[tuple[int, str], ReplicatedInterval]:
        return self.sample_shares_at(self.cuts)

    def sample_shares_at(
        self, cuts: NDArray[np.int64]
    ) -> dict[tuple[int, str], ReplicatedInterval]:
        """Share of each class in each sample that passes some cuts; indices as in `cuts`."""
        shares = {}
        num_thresholds = len(self.thresholds)
        for stratum in self.replicas.strata:
            sums_above = np.cumsum(self.replicas.sums(stratum, self.bins, num_thresholds), axis=0)
            squares = np.square(self.replicas.weights[stratum.rows])
            squares_above = np.cumsum(
                np.bincount(self.bins[stratum.rows], squares, num_thresholds)
            ).astype(np.float64)
            passing = np.take_along_axis(sums_above, cuts, axis=0)
            shares[stratum.label, stratum.sample] = self.replicas.shares_passing(
                stratum, passing, squares_above[cuts[:, 0]]
            )
        return shares

    def sample_share(self, label: int, sample: str) -> ReplicatedInterval | None:
        """Share of a class in a sample that passes the cuts; None without test events."""
        return self._sample_shares.get((label, sample))

    def class_share(self, label: int) -> ReplicatedInterval:
        """Share of a class that passes the cuts."""
        return sum_intervals(
            self._sample_shares[label, stratum.sample].scaled(stratum.fraction)
            for stratum in self.replicas.strata_of_class(label)
        )

    def mixture_share(self, fractions: Mapping[int, float]) -> ReplicatedInterval:
        """Share of a mixture that passes the cuts."""
        return sum_intervals(
            self.class_share(label).scaled(fraction) for label, fraction in fractions.items()
        )


def _sums_of_following(values: Floats) -> Floats:
    """For each value the sum of all that follow it."""
    sums_from_end = np.cumsum(values[::-1])
    return np.append(sums_from_end[-2::-1], 0.0)
