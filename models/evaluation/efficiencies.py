"""Efficiencies with errors, and working points: background efficiencies at a high signal efficiency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from models.errors import UndefinedMetricError
from models.evaluation.metrics import effective_size

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Probability outside a central interval of one standard deviation.
ONE_SIGMA: Final = 0.31731
#: Least expected number of signal events below a threshold; with fewer, its position is mostly chance.
FEWEST_FAILING: Final = 10.0


class Efficiency(NamedTuple):
    """Share of events that pass, with its central interval."""

    value: float
    low: float
    high: float


class WorkingPoint(NamedTuple):
    """A threshold on the score of a signal class."""

    wanted: float
    """The wanted signal efficiency."""
    threshold: float
    """Events with at least this score pass."""
    signal: Efficiency
    backgrounds: dict[int, Efficiency]
    """Efficiency of each other class."""
    num_failing: float
    """Expected number of signal events below the threshold, in effective unweighted events."""

    @property
    def is_measurable(self) -> bool:
        """Whether enough signal events fail to fix the threshold."""
        return self.num_failing >= FEWEST_FAILING


def efficiency(passing: NDArray[np.bool_], weights: Floats, *, outside: float = ONE_SIGMA) -> Efficiency:
    """Weighted share of events that pass, with Clopper and Pearson's interval (1934).

    Weighted events count as the effective number of unweighted ones. The coverage of the interval is at least nominal,
    and the interval has a width above 0 even if all or no events pass.

    Args:
        passing: (num_events,) whether each event passes.
        weights: (num_events,) event weights; with negative ones the value may lie outside 0 to 1.
        outside: Probability outside the interval.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.

    Examples:
        >>> found = efficiency(np.array([True] * 9 + [False]), np.ones(10))
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.9, 0.706, 0.983)
    """
    total = weights.sum()
    if not total > 0:
        raise UndefinedMetricError("an efficiency is not defined: no events, or their weights add up to 0 or less")
    value = float(weights[passing].sum() / total)
    low, high = intervals(np.array(value), effective_size(weights), outside=outside)
    return Efficiency(value, float(low), float(high))


def intervals(values: Floats, size: float, *, outside: float = ONE_SIGMA) -> tuple[Floats, Floats]:
    """Lower and upper ends of Clopper and Pearson's intervals (1934) of several shares of the same events.

    Args:
        values: Shares, in an array of any shape; values outside 0 to 1 count as 0 or 1.
        size: Effective number of events, above 0; it may be a fraction.
        outside: Probability outside each interval.

    Examples:
        >>> low, high = intervals(np.array([0.0, 1.0]), 10.0)
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([0.0, 0.832], [0.168, 1.0])
    """
    passed = np.clip(values, 0.0, 1.0) * size
    failed = size - passed
    # If no or all events pass, a quantile is not defined, and the end is 0 or 1.
    low = np.where(passed > 0, beta.ppf(outside / 2, passed, failed + 1), 0.0)
    high = np.where(failed > 0, beta.ppf(1 - outside / 2, passed + 1, failed), 1.0)
    return low, high


def working_point(
    labels: Labels, scores: Floats, weights: Floats, *, signal: int, classes: Sequence[int], wanted: float
) -> WorkingPoint:
    """The highest threshold with at least the wanted signal efficiency, and the background efficiencies there.

    Args:
        labels: (num_events,) true classes.
        scores: (num_events,) scores of the signal class; higher is more like signal.
        weights: (num_events,) event weights.
        signal: The signal class.
        classes: All classes.
        wanted: Signal efficiency, above 0 and at most 1.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0, or a score is not finite.
        ValueError: `wanted` is outside this range.

    Examples:
        >>> labels, scores = np.array([1, 1, 1, 1, 0, 0]), np.array([0.9, 0.8, 0.7, 0.2, 0.75, 0.1])
        >>> point = working_point(labels, scores, np.ones(6), signal=1, classes=[0, 1], wanted=0.75)
        >>> point.threshold, point.signal.value, point.backgrounds[0].value
        (0.7, 0.75, 0.5)
    """
    if not 0 < wanted <= 1:
        raise ValueError(f"a signal efficiency must be above 0 and at most 1, not {wanted}")
    refuse_not_finite(scores)
    is_signal = labels == signal
    threshold = float(thresholds(scores[is_signal], weights[is_signal], np.array([wanted]))[0])
    passing = scores >= threshold
    found = {each: efficiency(passing[labels == each], weights[labels == each]) for each in classes}
    failing = (1 - wanted) * effective_size(weights[is_signal])
    return WorkingPoint(wanted, threshold, found.pop(signal), found, failing)


def thresholds(scores: Floats, weights: Floats, wanted: Floats) -> Floats:
    """The highest threshold for each wanted share: at least this share of the weight has scores at or above it.

    With negative weights, several thresholds may give the same share; the highest one counts.

    Args:
        scores: (num_events,) finite scores.
        weights: (num_events,) event weights; some may be negative.
        wanted: (num_points,) wanted shares, above 0 and at most 1, in any order.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.

    Examples:
        >>> thresholds(np.array([0.9, 0.8, 0.8, 0.1]), np.ones(4), np.array([0.5, 1.0])).tolist()
        [0.8, 0.1]
    """
    total = weights.sum()
    if not total > 0:
        raise UndefinedMetricError("there is no signal, or its weights add up to 0 or less: no threshold exists")
    values, place = np.unique(scores, return_inverse=True)
    # Events with the same score pass or fail together.
    per_value = np.bincount(place, weights, minlength=len(values))
    # The highest share of any threshold down to this one. It always rises, unlike the share itself.
    most_kept = np.maximum.accumulate(np.cumsum(per_value[::-1])) / total
    # The lowest score keeps all events, but rounding may make the sum of many weights a little less than 1.
    first = np.minimum(np.searchsorted(most_kept, wanted - 1e-12), len(values) - 1)
    return np.asarray(values[::-1][first], dtype=np.float64)


def refuse_not_finite(scores: Floats) -> None:
    """Raise `UndefinedMetricError` if a score is infinite or not a number."""
    if not np.isfinite(scores).all():
        raise UndefinedMetricError("a score is not finite; the model or its input is damaged")


def rate(cross_section_pb: float, efficiency_before: float, passing: float, *, per_pb_second: float) -> float:
    """Events per second that pass: cross-section x efficiency of the selection before x of the working point.

    Args:
        cross_section_pb: Cross-section of the process [pb].
        efficiency_before: Efficiency of all selections before the classifier.
        passing: Efficiency of the working point.
        per_pb_second: Instantaneous luminosity [1 / (pb s)]; 0.02 is 2e34 / (cm2 s).

    Examples:
        >>> round(rate(800.0, 0.25, 0.9, per_pb_second=0.02), 2)
        3.6
    """
    return cross_section_pb * efficiency_before * passing * per_pb_second


def purity(rates: Sequence[float], signal: int) -> float:
    """Share of the signal in the rate that passes; NaN if the rate is 0.

    Examples:
        >>> purity([9.0, 1.0], 1)
        0.1
    """
    total = sum(rates)
    return rates[signal] / total if total > 0 else math.nan
