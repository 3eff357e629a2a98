"""The score that separates the signal from a mixture of backgrounds, and how it decides in all replicas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Ends, Replicas, added
from models.evaluation.intervals import Floats, effective_numbers, first_kept, thresholds

#: Highest number of thresholds in the replicas. With more different scores, only some are thresholds.
_MOST_THRESHOLDS: Final = 2000


class Mixture(NamedTuple):
    """Backgrounds that are rejected together."""

    fractions: Mapping[int, float]
    """Fraction of each background class; they add up to 1."""
    words: str
    """What the mixture is, for people."""


def discriminant(
    probabilities: Floats, *, signal: Mapping[int, float], fractions: Mapping[int, float]
) -> Floats:
    """The score s / (s + b), s = sum f_s p_s and b = sum f_b p_b, or 0.5 if both are 0; it rises with s / b.

    If the probabilities are right for classes in equal parts, it is the best possible score against backgrounds in
    these fractions (lemma of Neyman and Pearson, 1933). Against one background it is the likelihood ratio of the two.
    From (num_events, num_classes) probabilities to (num_events,).
    """
    ours, others = (
        np.asarray(
            sum(fraction * probabilities[:, label] for label, fraction in each.items()),
            dtype=np.float64,
        )
        for each in (signal, fractions)
    )
    both = ours + others
    found = np.full(len(both), 0.5)
    np.divide(ours, both, out=found, where=both > 0)
    return found


class Scored:
    """A score of all events in all replicas: (num_events,), higher for events that are more like signal.

    The thresholds of the `wanted` shares are exact: at least these of the signal's mixture are kept, or, with a
    `background`, at most these of that mixture. A score that is not finite is an `UndefinedMetricError`.
    """

    def __init__(
        self,
        replicas: Replicas,
        scores: Floats,
        signal: Mapping[int, float],
        wanted: Floats,
        *,
        background: Mapping[int, float] | None = None,
    ) -> None:
        if not np.isfinite(scores).all():
            raise UndefinedMetricError("a score is not finite; the model or its input is damaged")
        self.replicas, self.signal, self.wanted, self.background = (
            replicas,
            signal,
            wanted,
            background,
        )
        self.thresholds = self._chosen(scores)
        """(num_thresholds,) falling."""
        self.place: NDArray[np.int64] = np.searchsorted(-self.thresholds, -scores)

    def _chosen(self, scores: Floats) -> Floats:
        values = np.unique(scores)
        if len(values) > _MOST_THRESHOLDS:
            mixed = self.mixed(self.background or self.signal)
            is_counted = mixed != 0
            exact = thresholds(scores[is_counted], mixed[is_counted], self._wanted_in_replicas())
            places = np.searchsorted(values, exact)
            # The next higher score keeps less than the wanted share.
            next_places = np.minimum(places + 1, len(values) - 1)
            even = np.linspace(0, len(values) - 1, _MOST_THRESHOLDS).astype(np.int64)
            values = values[np.union1d(even, np.append(places, next_places))]
        return values[::-1]

    def _wanted_in_replicas(self) -> Floats:
        """The wanted shares, and for backgrounds others around them.

        Few backgrounds pass, so that their threshold differs much between the replicas.
        """
        if self.background is None:
            return self.wanted
        factors = np.append(np.geomspace(0.3, 3, 60), 1.0)
        return np.minimum(np.outer(self.wanted, factors).ravel(), 1.0)

    def mixed(self, fractions: Mapping[int, float]) -> Floats:
        """(num_events,) weights with which classes, and their samples, have their shares of a mixture; 0 elsewhere."""
        found = np.zeros(len(self.replicas.weights))
        for label, fraction in fractions.items():
            for each in self.replicas.of_class(label):
                found[each.rows] = (
                    fraction * self.replicas.weights[each.rows] * each.fraction / each.totals[0]
                )
        return found

    def share_passing(self, fractions: Mapping[int, float]) -> Floats:
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
        weights, num_thresholds = self.mixed(fractions), len(self.thresholds)
        sums = np.bincount(self.place, weights, num_thresholds)
        squares = np.bincount(self.place, np.square(weights), num_thresholds)
        return sums.astype(np.float64), squares.astype(np.float64)

    def kept(self, label: int) -> Floats:
        """Share of a class at or above each threshold, (num_thresholds, 1 + num_replicas)."""
        found: Floats = sum(  # type: ignore[assignment]
            each.fraction * self.replicas.sums(each, self.place, len(self.thresholds)) / each.totals
            for each in self.replicas.of_class(label)
        )
        return np.cumsum(found, axis=0)

    def kept_of(self, fractions: Mapping[int, float]) -> Floats:
        """Share of a mixture at or above each threshold, (num_thresholds, 1 + num_replicas)."""
        return np.asarray(sum(fraction * self.kept(label) for label, fraction in fractions.items()))

    @cached_property
    def points(self) -> NDArray[np.int64]:
        """Place of the threshold of each wanted share, found in each replica anew: (num_points, 1 + num_replicas)."""
        most = np.ascontiguousarray(
            np.maximum.accumulate(self.kept_of(self.background or self.signal), axis=0).T
        )
        if self.background is None:
            return np.stack([first_kept(each, self.wanted) for each in most], axis=1)
        last = [np.searchsorted(each, self.wanted * (1 + 1e-9), side="right") - 1 for each in most]
        return np.maximum(np.stack(last, axis=1), 0)

    def area(self, fractions: Mapping[int, float]) -> Floats:
        """Area under the ROC curve against a mixture, (1 + num_replicas,); pairs of equal scores count half."""
        kept = self.kept_of(self.signal)
        above = np.vstack([np.zeros((1, kept.shape[1])), kept])
        in_order = (above[1:] + above[:-1]) / 2
        found = 0.0
        for label, fraction in fractions.items():
            left = self.kept(label)
            found = found + fraction * (np.diff(left, axis=0, prepend=0.0) * in_order).sum(axis=0)
        return np.asarray(found)

    @cached_property
    def passing(self) -> dict[tuple[int, str], Ends]:
        """Share of each class in each sample that passes at the points."""
        return self.passing_at(self.points)

    def passing_at(self, points: NDArray[np.int64]) -> dict[tuple[int, str], Ends]:
        """Share of each class in each sample that passes; places of thresholds as in `points`."""
        found = {}
        for each in self.replicas.strata:
            sums = np.cumsum(self.replicas.sums(each, self.place, len(self.thresholds)), axis=0)
            squared = np.square(self.replicas.weights[each.rows])
            squares = np.cumsum(
                np.bincount(self.place[each.rows], squared, len(self.thresholds))
            ).astype(np.float64)
            kept = np.take_along_axis(sums, points, axis=0)
            found[each.label, each.sample] = self.replicas.passing(
                each, kept, squares[points[:, 0]]
            )
        return found

    def of_class(self, label: int) -> Ends:
        """Share of a class that passes at the points."""
        samples = self.replicas.of_class(label)
        return added(self.passing[each.label, each.sample].times(each.fraction) for each in samples)

    def of_mixture(self, fractions: Mapping[int, float]) -> Ends:
        """Share of a mixture of backgrounds that passes at the points."""
        return added(self.of_class(label).times(fraction) for label, fraction in fractions.items())


def _sums_of_following(values: Floats) -> Floats:
    """For each value the sum of all that follow it."""
    sums_from_end = np.cumsum(values[::-1])
    return np.append(sums_from_end[-2::-1], 0.0)
