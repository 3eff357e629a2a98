"""Efficiencies with errors, and working points: what is left of the backgrounds where most of the signal stays."""

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
#: With fewer expected events below a threshold, its place is chance.
FEWEST_FAILING: Final = 10.0


class Efficiency(NamedTuple):
    """A share of events that pass, with its central interval."""

    value: float
    low: float
    high: float


class WorkingPoint(NamedTuple):
    """A threshold on the score of a signal class."""

    wanted: float
    """Signal efficiency that was asked for."""
    threshold: float
    """Events with this score or a higher one pass."""
    signal: Efficiency
    backgrounds: dict[int, Efficiency]
    """Of each other class."""
    num_failing: float
    """Expected signal events below the threshold, as many unweighted ones."""

    @property
    def is_measurable(self) -> bool:
        """Whether enough signal events fail for the threshold to mean something."""
        return self.num_failing >= FEWEST_FAILING


def efficiency(passing: NDArray[np.bool_], weights: Floats, *, outside: float = ONE_SIGMA) -> Efficiency:
    """Weighted share of events that pass, with Clopper and Pearson's interval (1934).

    Weighted events count as the effective number of unweighted ones. The interval covers at least what it promises,
    and is not empty where all or none pass.

    Args:
        passing: (num_events,).
        weights: (num_events,); some may be negative, then the value may lie outside 0 to 1.
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
        values: Shares, of any shape; below 0 and above 1 they count as 0 and 1.
        size: How many unweighted events the weighted ones count as; above 0, need not be whole.
        outside: Probability outside each interval.

    Examples:
        >>> low, high = intervals(np.array([0.0, 1.0]), 10.0)
        >>> low.round(3).tolist(), high.round(3).tolist()
        ([0.0, 0.832], [0.168, 1.0])
    """
    passed = np.clip(values, 0.0, 1.0) * size
    failed = size - passed
    # Where none or all pass, the quantile is not defined and the end is that of the range.
    low = np.where(passed > 0, beta.ppf(outside / 2, passed, failed + 1), 0.0)
    high = np.where(failed > 0, beta.ppf(1 - outside / 2, passed + 1, failed), 1.0)
    return low, high


def working_point(
    labels: Labels, scores: Floats, weights: Floats, *, signal: int, classes: Sequence[int], wanted: float
) -> WorkingPoint:
    """The highest threshold at which so much of the signal stays, and what stays of each background.

    Args:
        labels: (num_events,) true classes.
        scores: (num_events,) of the signal class; higher is more like signal.
        weights: (num_events,) event weights.
        signal: The class.
        classes: All classes.
        wanted: Signal efficiency, above 0 and at most 1.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0, or a score is not finite.
        ValueError: `wanted` is no such efficiency.

    Examples:
        >>> labels, scores = np.array([1, 1, 1, 1, 0, 0]), np.array([0.9, 0.8, 0.7, 0.2, 0.75, 0.1])
        >>> point = working_point(labels, scores, np.ones(6), signal=1, classes=[0, 1], wanted=0.75)
        >>> point.threshold, point.signal.value, point.backgrounds[0].value
        (0.7, 0.75, 0.5)
    """
    if not 0 < wanted <= 1:
        raise ValueError(f"a signal efficiency lies above 0 and is at most 1, not {wanted}")
    refuse_not_finite(scores)
    is_signal = labels == signal
    threshold = float(thresholds(scores[is_signal], weights[is_signal], np.array([wanted]))[0])
    passing = scores >= threshold
    found = {each: efficiency(passing[labels == each], weights[labels == each]) for each in classes}
    failing = (1 - wanted) * effective_size(weights[is_signal])
    return WorkingPoint(wanted, threshold, found.pop(signal), found, failing)


def thresholds(scores: Floats, weights: Floats, wanted: Floats) -> Floats:
    """For each wanted share the highest score above which, itself included, at least so much of the weight lies.

    With negative weights the share that lies above a score need not fall with the score; the highest one counts.

    Args:
        scores: (num_events,), finite.
        weights: (num_events,); some may be negative.
        wanted: (num_points,), above 0 and at most 1, in any order.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.

    Examples:
        >>> thresholds(np.array([0.9, 0.8, 0.8, 0.1]), np.ones(4), np.array([0.5, 1.0])).tolist()
        [0.8, 0.1]
    """
    total = weights.sum()
    if not total > 0:
        raise UndefinedMetricError("there is no signal, or its weights add up to 0 or less: no threshold keeps any")
    values, place = np.unique(scores, return_inverse=True)
    # Events of one score pass or fail together.
    per_value = np.bincount(place, weights, minlength=len(values))
    # The most that any threshold down to this one keeps: unlike the share itself it always rises.
    most_kept = np.maximum.accumulate(np.cumsum(per_value[::-1])) / total
    # Sums of many weights: 1 may come out as 1 - 1e-16, or as still less, but the lowest score keeps all.
    first = np.minimum(np.searchsorted(most_kept, wanted - 1e-12), len(values) - 1)
    return np.asarray(values[::-1][first], dtype=np.float64)


def refuse_not_finite(scores: Floats) -> None:
    """Raise `UndefinedMetricError` if a score is infinite or not a number."""
    if not np.isfinite(scores).all():
        raise UndefinedMetricError("a score is not finite; the model or its input is damaged")


def rate(cross_section_pb: float, efficiency_before: float, passing: float, *, per_pb_second: float) -> float:
    """Events per second that pass: cross-section x efficiency of the selection before x of the working point.

    Args:
        cross_section_pb: Of the process [pb].
        efficiency_before: Of everything before the classifier.
        passing: Of the working point.
        per_pb_second: Instantaneous luminosity [1 / (pb s)]; 0.02 is 2e34 / (cm2 s).

    Examples:
        >>> round(rate(800.0, 0.25, 0.9, per_pb_second=0.02), 2)
        3.6
    """
    return cross_section_pb * efficiency_before * passing * per_pb_second


def purity(rates: Sequence[float], signal: int) -> float:
    """Share of the signal in what passes; not a number where nothing does.

    Examples:
        >>> purity([9.0, 1.0], 1)
        0.1
    """
    total = sum(rates)
    return rates[signal] / total if total > 0 else math.nan
