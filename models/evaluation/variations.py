"""Measures how other event weights and shifted inputs change the numbers of a model.

Thresholds stay those of the working points: a trigger is set once. Events, and so most of their
statistical fluctuations, are common. So the error of a shift follows from the difference that each
event makes to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_core.weight_sums import are_positive
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats, Labels, WeightSums
from models.evaluation.scored_events import ScoredEvents, within_classes


class EventVariation(NamedTuple):
    """The test events with other weights or with other probabilities."""

    weights: Floats
    """(num_events,) physics weights within a class."""
    probabilities: Floats
    """(num_events, num_classes)."""
    is_selected: NDArray[np.bool_]
    """(num_events,) whether the event still passes the selection; if not, it passes no
    threshold."""

    def select(self, rows: NDArray[np.int64]) -> EventVariation:
        """Return the events in some rows."""
        return EventVariation._make(column[rows] for column in self)


class Statistic(NamedTuple):
    """A number measured on a sample of events, and the influence of each event on it."""

    value: float
    contributions: Floats
    """(num_events,) influence of each event on the number; the sum of their squares is its
    variance."""


def with_weights(events: ScoredEvents, weights: Floats) -> EventVariation:
    """Return the events with other weights and the same probabilities; each class is normalised."""
    is_selected = np.ones(len(events.labels), dtype=np.bool_)
    class_weights = within_classes(events.labels, weights)
    return EventVariation(class_weights, events.probabilities, is_selected)


def variations(
    events: ScoredEvents,
    varied: Mapping[str, EventVariation],
    task: EvaluationTask,
    thresholds: Sequence[float],
) -> dict[str, Any]:
    """Measure the numbers of a model in each variation, and their shifts from the nominal ones.

    Args:
        events: The nominal events.
        varied: The same events in each variation, by its name.
        task: The classes, and the signal efficiencies of the working points.
        thresholds: The threshold of each working point.

    Returns:
        By variation: `accuracy`, `auc` against all backgrounds and, at each of `working_points`,
        `efficiencies` by class. Each has a `value`, its `shift` from the nominal one, and the
        `error` of the shift. It is null where a class that counts has no weight.
    """
    is_measured = np.isin(events.labels, task.measured_labels)
    rows = np.flatnonzero(is_measured)
    labels = events.labels[rows]
    nominal = with_weights(events, events.weights).select(rows)
    shifts = {}
    for name, variation in varied.items():
        measured = variation.select(rows)
        shifts[name] = _shifts_of_model(labels, nominal, measured, task, thresholds)
    return shifts


def envelope(varied: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise several variations, at least one, in the form of one of them.

    Each number has its most negative shift `down` and its most positive shift `up`, 0 if there is
    none. `rms` is the root mean square of all shifts. A number is null if one of the variations has
    none.
    """
    points = []
    for index, first_point in enumerate(varied[0]["working_points"]):
        varied_points = [variation["working_points"][index] for variation in varied]
        efficiencies = {}
        # Each class has its own envelope at each working point.
        for name in first_point["efficiencies"]:
            shifts = [point["efficiencies"][name] for point in varied_points]
            efficiencies[name] = _spread(shifts)
        points.append({"wanted": first_point["wanted"], "efficiencies": efficiencies})
    return {
        "accuracy": _spread([variation["accuracy"] for variation in varied]),
        "auc": _spread([variation["auc"] for variation in varied]),
        "working_points": points,
    }


def _spread(numbers: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Return the extreme shifts and the root mean square; None if a shift is undefined."""
    shifts = [number["shift"] for number in numbers if number is not None]
    if len(shifts) < len(numbers):
        return None
    root_mean_square = math.hypot(*shifts) / len(shifts) ** 0.5
    return {"down": min(0.0, *shifts), "up": max(0.0, *shifts), "rms": root_mean_square}


def _shifts_of_model(
    labels: Labels,
    nominal: EventVariation,
    varied: EventVariation,
    task: EvaluationTask,
    thresholds: Sequence[float],
) -> dict[str, Any]:
    """Return how one variation shifts accuracy, area and efficiencies of a model."""
    points = []
    for efficiency, threshold in zip(task.working_points, thresholds, strict=True):
        shifts = _efficiency_shifts(labels, nominal, varied, task, threshold)
        points.append({"wanted": efficiency, "efficiencies": shifts})
    # The area is the one under the ROC curve of the signal against all backgrounds.
    nominal_area = _area(labels, nominal, task)
    varied_area = _area(labels, varied, task)
    area_shift = _shift(nominal_area, varied_area)
    accuracy_shift = _accuracy_shift(labels, nominal, varied, task)
    return {
        "accuracy": _null_if_undefined(accuracy_shift),
        "auc": _null_if_undefined(area_shift),
        "working_points": points,
    }


def _efficiency_shifts(
    labels: Labels,
    nominal: EventVariation,
    varied: EventVariation,
    task: EvaluationTask,
    threshold: float,
) -> dict[str, dict[str, float] | None]:
    """Measure the shift of the share of each class that a threshold keeps.

    It is null for classes that do not count, or have no weight.
    """
    nominal_passes = task.score(nominal.probabilities) >= threshold
    varied_passes = task.score(varied.probabilities) >= threshold
    # Classes that do not count stay null.
    shifts: dict[str, dict[str, float] | None] = dict.fromkeys(task.classes)
    for label in task.measured_labels:
        in_class = labels == label
        shift = _share_shift(nominal, nominal_passes, varied, varied_passes, in_class)
        shifts[task.classes[label]] = _null_if_undefined(shift)
    return shifts


def _accuracy_shift(
    labels: Labels, nominal: EventVariation, varied: EventVariation, task: EvaluationTask
) -> dict[str, float]:
    """Measure the shift of the mean accuracy of the classes, which count alike."""
    nominal_is_right = nominal.probabilities.argmax(axis=1) == labels
    varied_is_right = varied.probabilities.argmax(axis=1) == labels
    shifts = []
    for label in task.measured_labels:
        in_class = labels == label
        shift = _share_shift(nominal, nominal_is_right, varied, varied_is_right, in_class)
        shifts.append(shift)
    mean_value = np.mean([shift["value"] for shift in shifts])
    mean_shift = np.mean([shift["shift"] for shift in shifts])
    # Classes have different events, so their errors are independent.
    errors = [shift["error"] for shift in shifts]
    mean_error = math.hypot(*errors) / len(errors)
    return {"value": float(mean_value), "shift": float(mean_shift), "error": mean_error}


def _share_shift(
    nominal: EventVariation,
    nominal_passes: NDArray[np.bool_],
    varied: EventVariation,
    varied_passes: NDArray[np.bool_],
    in_class: NDArray[np.bool_],
) -> dict[str, float]:
    """Measure the shift of the weighted share of a class that passes and is selected.

    Both variations hold the same events in the same order. Events that are not selected still count
    in the total, so losing them lowers the share.
    """
    # An event passes if it is selected and its score is above the threshold.
    nominal_passing = nominal_passes & nominal.is_selected
    varied_passing = varied_passes & varied.is_selected
    nominal_share = _share(nominal.weights[in_class], nominal_passing[in_class])
    varied_share = _share(varied.weights[in_class], varied_passing[in_class])
    return _shift(nominal_share, varied_share)


def _shift(nominal: Statistic, varied: Statistic) -> dict[str, float]:
    """Return a number after a variation, its shift, and the error of the shift.

    The error is the root of the summed squares of the differences of the events' influences.
    """
    # Both are of the same events, so their common fluctuations cancel.
    differences = varied.contributions - nominal.contributions
    error = float(np.sqrt(np.square(differences).sum()))
    shift = varied.value - nominal.value
    return {"value": varied.value, "shift": shift, "error": error}


def _null_if_undefined(shift: dict[str, float]) -> dict[str, float] | None:
    """Return None instead of a shift that is NaN, since JSON has no NaN."""
    return None if math.isnan(shift["shift"]) else shift


def _share(weights: Floats, passing: NDArray[np.bool_]) -> Statistic:
    """Compute the weighted share that passes; NaN if the weights add up to 0 or less."""
    total = np.nan
    if WeightSums.of(weights).is_positive:
        total = weights.sum()
    share = float(weights @ passing / total)
    # An event's influence is its weight times the derivative of the share by this weight.
    contributions = weights * (passing - share) / total
    return Statistic(share, contributions)


def _area(labels: Labels, events: EventVariation, task: EvaluationTask) -> Statistic:
    """Compute the area under the ROC curve against all backgrounds, with each event's influence.

    The area is the share of pairs of a signal and a background event with the signal at the higher
    score. Pairs of equal scores count half (DeLong, DeLong, Clarke-Pearson 1988, with weights).
    Events that are not selected have the lowest score. The area is NaN if a class has no positive
    weight.
    """
    num_classes = len(task.classes)
    weight_of_class = np.bincount(labels, events.weights, num_classes)
    square_of_class = np.bincount(labels, np.square(events.weights), num_classes)
    is_positive = are_positive(weight_of_class, square_of_class)
    if not is_positive[task.measured_labels].all():
        undefined = np.full(len(labels), np.nan)
        return Statistic(np.nan, undefined)
    # Classes that do not count have no events here.
    weight_of_class[weight_of_class == 0] = np.nan
    # The events of the signal add up to 1, and so do those of the backgrounds.
    fraction_of_class = _fractions_in_mixtures(task)
    factor_of_class = fraction_of_class / weight_of_class
    event_fractions = factor_of_class[labels] * events.weights

    scores = task.score(events.probabilities)
    scores = np.where(events.is_selected, scores, -np.inf)
    is_signal = np.isin(labels, list(task.signal.fractions))
    share_in_order = _share_in_order(scores, is_signal, event_fractions)
    weights_in_order = events.weights * share_in_order
    sum_of_class = np.bincount(labels, weights_in_order, num_classes)
    mean_of_class = sum_of_class / weight_of_class
    area = 0.0
    for label, fraction in task.signal.fractions.items():
        area += fraction * mean_of_class[label]
    contributions = event_fractions * (share_in_order - mean_of_class[labels])
    return Statistic(float(area), contributions)


def _fractions_in_mixtures(task: EvaluationTask) -> Floats:
    """Return the fraction of each class in its mixture, the signal or the backgrounds."""
    fractions = np.zeros(len(task.classes))
    for mixture in (task.signal, task.mixture):
        for label, fraction in mixture.fractions.items():
            fractions[label] = fraction
    return fractions


def _share_in_order(
    scores: Floats, is_signal: NDArray[np.bool_], event_fractions: Floats
) -> Floats:
    """Return the share of the other side that each event is ordered correctly against.

    Signal belongs above background, and equal scores count half.

    Args:
        scores: (num_events,).
        is_signal: (num_events,) whether an event is of the signal, else of the background.
        event_fractions: (num_events,) weights of which each side adds up to 1.
    """
    # `rank` is the position of an event's score among the different scores, in rising order.
    different_scores, rank = np.unique(scores, return_inverse=True)
    num_ranks = len(different_scores)
    is_background = ~is_signal
    signal = np.bincount(rank[is_signal], event_fractions[is_signal], num_ranks)
    background = np.bincount(rank[is_background], event_fractions[is_background], num_ranks)
    background_below = np.cumsum(background) - background / 2
    signal_above = signal.sum() - np.cumsum(signal) + signal / 2
    return np.where(is_signal, background_below[rank], signal_above[rank])
