"""Curves and comparisons of an evaluation: background efficiencies, pairs of classes, calibration, two samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstwo

from models.errors import UndefinedMetricError
from models.evaluation.efficiencies import Efficiency, efficiency, intervals, refuse_not_finite, thresholds
from models.evaluation.metrics import Estimate, auc_one_vs_rest, effective_size

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

#: Bin edges of the variables in plots of efficiencies; names as in `features.columns.HIGH_LEVEL`. pT, HT and missing ET
#: in GeV. Lepton pT starts at the threshold of the selection, 23 GeV.
KINEMATIC_EDGES: Final[dict[str, tuple[float, ...]]] = {
    "lepton_pt": (23, 30, 40, 50, 70, 100, 150, 300),
    "lepton_eta": (-2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
    "ht": (0, 100, 200, 300, 400, 600, 1000),
    "met": (0, 20, 40, 60, 100, 150, 300),
    "num_jets": (-0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5),
}


class EfficiencyCurve(NamedTuple):
    """Background efficiency against signal efficiency."""

    signal_efficiency: Floats
    """(num_points,) wanted signal efficiencies, rising to 1."""
    background_efficiency: Floats
    """(num_points,) background efficiency at the highest threshold that keeps the wanted signal efficiency."""
    low: Floats
    """(num_points,) lower end of the one-sigma interval of the background efficiency."""
    high: Floats
    """(num_points,) upper end of the one-sigma interval of the background efficiency."""


class CalibrationBin(NamedTuple):
    """Events with predicted probabilities in one bin."""

    low: float
    high: float
    mean_predicted: float
    observed: Efficiency
    """Share of the events that belong to the class."""
    num_events: int
    weight: float
    """Sum of the event weights."""


class TwoSample(NamedTuple):
    """Distance of two samples, and its significance."""

    distance: float
    p_value: float
    """Probability of at least this distance for two samples of the same distribution."""


def background_curve(
    labels: Labels,
    scores: Floats,
    weights: Floats,
    *,
    signal: int,
    background: Sequence[int] | None = None,
    num_points: int = 100,
) -> EfficiencyCurve:
    """Background efficiency at each signal efficiency of an even grid from 1 / num_points to 1.

    Each point is the working point of `models.evaluation.efficiencies.working_point` with the same wanted efficiency.
    Its interval is Clopper and Pearson's with the effective number of background events, at a fixed threshold. The
    curve rises if no weight is negative.

    Args:
        labels: (num_events,) true classes.
        scores: (num_events,), finite; higher is more like signal.
        weights: (num_events,) event weights.
        signal: The class to keep.
        background: The classes to reject, counted together; all others if None.
        num_points: Points of the grid; a grid with a multiple of 100 points contains 0.9, 0.95 and 0.99.

    Raises:
        UndefinedMetricError: The weights of signal or background do not add up to more than 0, or a score is not
            finite.
        ValueError: The signal is among the backgrounds.

    Examples:
        >>> labels, scores = np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.5, 0.1])
        >>> background_curve(labels, scores, np.ones(4), signal=1, num_points=2).background_efficiency.tolist()
        [0.0, 0.5]
    """
    if background is not None and signal in background:
        raise ValueError(f"class {signal} is signal and background at the same time; name it once")
    refuse_not_finite(scores)
    is_signal = labels == signal
    is_background = ~is_signal if background is None else np.isin(labels, background)
    _refuse_no_weight(weights[is_background], "there is no background")
    grid = np.arange(1, num_points + 1) / num_points
    cuts = thresholds(scores[is_signal], weights[is_signal], grid)
    passing = _share_from(scores[is_background], weights[is_background], cuts)
    low, high = intervals(passing, effective_size(weights[is_background]))
    return EfficiencyCurve(grid, passing, low, high)


def _share_from(scores: Floats, weights: Floats, cuts: Floats) -> Floats:
    """Share of the weight with scores at or above each cut."""
    order = np.argsort(-scores)
    kept = np.concatenate([[0.0], np.cumsum(weights[order])])
    passing = np.searchsorted(-scores[order], -cuts, side="right")
    return np.asarray(kept[passing] / weights.sum(), dtype=np.float64)


def likelihood_ratio(probabilities: Floats, *, signal: int, background: int) -> Floats:
    """The score that separates one class from one other: p_s / (p_s + p_b), or 0.5 if both are 0.

    If the probabilities are right, it is the best possible score (lemma of Neyman and Pearson, 1933). It does not
    depend on the probabilities of the other classes.

    Args:
        probabilities: (num_events, num_classes).
        signal: The class whose score is high.
        background: The class whose score is low.

    Returns:
        (num_events,).

    Examples:
        >>> likelihood_ratio(np.array([[0.375, 0.125, 0.5], [0.0, 0.0, 1.0]]), signal=0, background=1).tolist()
        [0.75, 0.5]
    """
    ours = np.asarray(probabilities[:, signal], dtype=np.float64)
    both = ours + probabilities[:, background]
    ratio = np.full(len(both), 0.5)
    np.divide(ours, both, out=ratio, where=both > 0)
    return ratio


def auc_of_two(labels: Labels, scores: Floats, weights: Floats, *, signal: int, background: int) -> Estimate:
    """Area under the ROC curve of one class against one other, without the events of all other classes.

    Args:
        labels: (num_events,) true classes.
        scores: (num_events,), such as `likelihood_ratio`.
        weights: (num_events,) event weights.
        signal: The class whose score should be high.
        background: The class whose score should be low.

    Raises:
        UndefinedMetricError: The weights of a class do not add up to more than 0, or a score is not finite.

    Examples:
        >>> labels, scores = np.array([1, 1, 0, 2]), np.array([0.9, 0.3, 0.5, 0.95])
        >>> auc_of_two(labels, scores, np.ones(4), signal=1, background=0).value
        0.5
    """
    refuse_not_finite(scores)
    for each in (signal, background):
        _refuse_no_weight(weights[labels == each], f"class {each} cannot be separated from another")
    chosen = (labels == signal) | (labels == background)
    return auc_one_vs_rest(labels[chosen], scores[chosen], weights[chosen], signal=signal)


def calibration(
    is_class: NDArray[np.bool_], predicted: Floats, weights: Floats, *, num_bins: int = 10
) -> list[CalibrationBin]:
    """Observed share of a class in bins of its predicted probability: the reliability curve.

    The bins are equally wide; a value on an edge belongs to the bin below it, as in scikit-learn's `calibration_curve`.
    Bins whose weights do not add up to more than 0 are left out. With negative weights a mean may lie outside its bin.

    Args:
        is_class: (num_events,) whether the event is of the class.
        predicted: (num_events,) predicted probability of the class, from 0 to 1.
        weights: (num_events,) event weights.
        num_bins: Number of bins between 0 and 1.

    Raises:
        UndefinedMetricError: A prediction is no probability.

    Examples:
        >>> (found,) = calibration(np.array([True, False]), np.array([0.72, 0.78]), np.ones(2))
        >>> found.low, round(found.mean_predicted, 3), found.observed.value
        (0.7, 0.75, 0.5)
    """
    if not ((predicted >= 0) & (predicted <= 1)).all():
        raise UndefinedMetricError("a predicted probability is outside 0 to 1; the model or its input is damaged")
    edges = np.arange(num_bins + 1) / num_bins
    place = np.searchsorted(edges[1:-1], predicted)
    found = []
    for index in range(num_bins):
        inside = place == index
        total = float(weights[inside].sum())
        if total > 0:
            mean = float((weights[inside] * predicted[inside]).sum() / total)
            observed = efficiency(is_class[inside], weights[inside])
            bounds = float(edges[index]), float(edges[index + 1])
            found.append(CalibrationBin(*bounds, mean, observed, int(inside.sum()), total))
    return found


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Expected calibration error: mean distance of observed and predicted share, weighted by the bins' event weights.

    Naeini, Cooper and Hauskrecht (2015). It depends on the bins. Even for a perfect model it is above 0, by about the
    statistical error of the shares.

    Args:
        bins: From `calibration`.

    Raises:
        UndefinedMetricError: There are no bins.
    """
    if not bins:
        raise UndefinedMetricError("a calibration error is not defined: no bin has a sum of weights above 0")
    total = sum(each.weight for each in bins)
    return sum(each.weight * abs(each.observed.value - each.mean_predicted) for each in bins) / total


def kolmogorov_smirnov(first: Floats, first_weights: Floats, second: Floats, second_weights: Floats) -> TwoSample:
    """Largest distance of the weighted distribution functions of two samples, and its p-value.

    For unit weights the p-value equals that of scipy's `ks_2samp(method="asymp")`; else it uses the effective numbers
    of events and is approximate (Monahan, Numerical Methods of Statistics, 2011). Ties make it too large. With negative
    weights a distribution function may fall, or leave the range 0 to 1; the distance is still the largest one and may
    exceed 1.

    Args:
        first: (num_first,) values.
        first_weights: (num_first,).
        second: (num_second,) values in the same unit.
        second_weights: (num_second,).

    Raises:
        UndefinedMetricError: The weights of a sample do not add up to more than 0, a value is not a number, or the two
            samples are so small that the formula does not hold.

    Examples:
        >>> kolmogorov_smirnov(np.array([1.0, 2.0]), np.ones(2), np.array([2.0, 3.0]), np.array([1.0, 3.0])).distance
        0.75
    """
    for values, weights in ((first, first_weights), (second, second_weights)):
        _refuse_no_weight(weights, "two samples cannot be compared")
        if np.isnan(values).any():
            raise UndefinedMetricError("two samples cannot be compared: a value is not a number. Check the features.")
    places = np.unique(np.concatenate([first, second]))
    difference = _share_to(first, first_weights, places) - _share_to(second, second_weights, places)
    distance = float(np.abs(difference).max())
    sizes = effective_size(first_weights), effective_size(second_weights)
    # scipy rounds to whole events. Round to 9 digits first, so that a common weight factor cannot tip a half.
    size = round(round(sizes[0] * sizes[1] / (sizes[0] + sizes[1]), 9))
    if size < 1:
        raise UndefinedMetricError(
            f"two samples of effectively {sizes[0]:.1f} and {sizes[1]:.1f} events are too small to compare. Add files."
        )
    return TwoSample(distance, float(kstwo.sf(distance, size)))


def _share_to(values: Floats, weights: Floats, places: Floats) -> Floats:
    """Share of the weight with values at or below each place."""
    order = np.argsort(values)
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    below = below[np.searchsorted(values[order], places, side="right")]
    return np.asarray(below / weights.sum(), dtype=np.float64)


def efficiency_against(
    variable: Floats, passing: NDArray[np.bool_], weights: Floats, edges: Sequence[float] | Floats
) -> list[Efficiency | None]:
    """Share of events that pass, in bins of a variable; None for bins whose weights add up to 0 or less.

    A bin contains its lower edge. The first bin also holds all events below it, the last all events above it.

    Args:
        variable: (num_events,) values in the unit of the edges.
        passing: (num_events,) whether each event passes.
        weights: (num_events,) event weights.
        edges: (num_bins + 1,) rising, such as one of `KINEMATIC_EDGES`.

    Raises:
        UndefinedMetricError: A value of the variable is not a number.
        ValueError: The edges do not rise, or there are fewer than 2.

    Examples:
        >>> found = efficiency_against(np.array([5.0, 99.0]), np.array([True, False]), np.ones(2), [0, 10, 20, 30])
        >>> [None if each is None else each.value for each in found]
        [1.0, None, 0.0]
    """
    if len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ValueError(f"bin edges must be at least 2 and rise, not {list(edges)}")
    if np.isnan(variable).any():
        raise UndefinedMetricError("a value of the variable is not a number. Check the features.")
    place = np.searchsorted(np.asarray(edges[1:-1], dtype=np.float64), variable, side="right")
    chosen = [place == index for index in range(len(edges) - 1)]
    return [efficiency(passing[each], weights[each]) if weights[each].sum() > 0 else None for each in chosen]


def _refuse_no_weight(weights: Floats, what: str) -> None:
    if not weights.sum() > 0:
        raise UndefinedMetricError(f"{what}: no events, or their weights add up to 0 or less. Add files.")
