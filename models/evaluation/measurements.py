"""Measures all numbers of one evaluated model, ready for JSON.

Every error comes from the same bootstrap replicas of the events: copies of the test sample with
random event weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import NUM_REPLICAS, Estimate, Replicas, estimate, sum_intervals
from models.evaluation.calibration import (
    calibration,
    calibration_error,
    expected_calibration_errors,
)
from models.evaluation.curves import EfficiencyCurve, background_curve
from models.evaluation.cut_measurements import numbers_of_cuts, score_against
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.overtraining import compare_with_training, uncompared_classes
from models.evaluation.scored_events import ScoredEvents, balanced, describe_weights

#: Signal efficiencies of curves; they contain 0.9, 0.95 and 0.99.
GRID: Final = np.arange(1, 101) / 100


class ModelMeasurements(NamedTuple):
    """Numbers and curves of one model."""

    numbers: dict[str, Any]
    curves: dict[str, EfficiencyCurve]
    """Background efficiencies by name of the background."""
    area: Floats
    """(1 + num_replicas,) area under the curve against the mixture."""


def measure(
    events: ScoredEvents, train: ScoredEvents | None, replicas: Replicas, task: EvaluationTask
) -> ModelMeasurements:
    """Measure one model on test events, and compare their scores with those of training events.

    The score is s / (s + b), with s and b the mixed probabilities of signal and background. It is
    computed against all backgrounds together, and against each of them alone. A number that cannot
    be measured is null, and `not_measurable` has a sentence about it.

    Args:
        events: Test events of the measurable classes, with the probabilities of the model.
        train: Training events with probabilities; None leaves the comparison out.
        replicas: Bootstrap replicas of the test events.
        task: The classes, the signal and the working points.
    """
    # Each background needs a score of its own, which is optimal against it.
    scores: dict[str, ReplicatedScore] = {}
    curves: dict[str, EfficiencyCurve] = {}
    areas: dict[str, Floats] = {}
    for name, fractions in task.backgrounds.items():
        score = score_against(events, replicas, task, fractions, GRID)
        scores[name] = score
        curves[name] = background_curve(score, fractions)
        areas[name] = score.area(fractions)
    area_estimates = {name: estimate(area)._asdict() for name, area in areas.items()}
    comparison: dict[str, Any] = {}
    uncompared: list[str] = []
    if train is not None:
        comparison = compare_with_training(train, events, task)
        uncompared = uncompared_classes(comparison, train, events, task)
    # The first background is all backgrounds together, or the only one.
    mixture = next(iter(task.backgrounds))
    numbers = {
        **_numbers_of_classes(events, replicas, task),
        "auc_against": area_estimates,
        **numbers_of_cuts(events, scores[mixture], task),
        "train_against_test": comparison,
        "not_measurable": uncompared,
    }
    return ModelMeasurements(only_finite(numbers), curves, areas[mixture])


def only_finite(document: dict[str, Any]) -> dict[str, Any]:
    """Replace numbers that are not finite by null, since JSON lacks them.

    Examples:
        >>> only_finite({"value": 1.0, "ends": [math.nan, math.inf]})
        {'value': 1.0, 'ends': [None, None]}
    """
    return {key: _null_if_not_finite(value) for key, value in document.items()}


def _null_if_not_finite(value: Any) -> Any:
    """Return a JSON value in which every float that is not finite, however deep, is null."""
    if isinstance(value, dict):
        return only_finite(value)
    if isinstance(value, list):
        return [_null_if_not_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _numbers_of_classes(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> dict[str, Any]:
    """Measure accuracy, areas, confusion matrix and calibration, in which the classes count alike.

    The areas under the ROC curve (`auc`) are those of one class against all others in equal parts.
    """
    counts = np.bincount(events.labels, minlength=len(task.classes)).tolist()
    events_per_class = dict(zip(task.classes, counts, strict=True))
    areas = {}
    # With two classes only the signal's output is measured: the other one is 1 minus it.
    for label in task.outputs:
        area = _area_one_vs_rest(events.probabilities, replicas, label)
        areas[task.classes[label]] = area._asdict()
    return {
        "num_events": len(events.labels),
        "events_per_class": events_per_class,
        "accuracy": accuracy(events, replicas)._asdict(),
        "auc": areas,
        "confusion": _confusion(events, task.classes),
        "calibration": _calibration(events, task),
    }


def _confusion(events: ScoredEvents, classes: Sequence[str]) -> dict[str, Any]:
    """Count the events by true class (rows) and by class of the highest probability (columns).

    `by_truth` holds weighted shares of each true class, `events` plain numbers of events.
    """
    num_classes = len(classes)
    # Each event belongs to the cell (true class, predicted class).
    predicted = events.probabilities.argmax(axis=1)
    cell = events.labels, predicted
    shares = np.zeros((num_classes, num_classes))
    # Balanced weights of a class add up to 1, so each row adds up to 1.
    weights = balanced(events.labels, events.weights, num_classes)
    np.add.at(shares, cell, weights)
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(counts, cell, 1)
    return {"classes": list(classes), "by_truth": shares.tolist(), "events": counts.tolist()}


def replicas_of(events: ScoredEvents, task: EvaluationTask, num: int = NUM_REPLICAS) -> Replicas:
    """Make bootstrap replicas of test events, all of which are of measurable classes."""
    return Replicas(
        events.labels,
        events.samples,
        events.weights,
        seed=task.seed,
        num=num,
        classes=task.classes,
    )


def measurable_events(
    events: ScoredEvents, task: EvaluationTask
) -> tuple[ScoredEvents, EvaluationTask, list[str]]:
    """Select the test events of the classes that can be measured.

    A class without test events, or whose weights add up to 0 or less, has no efficiency, area or
    accuracy. If no signal or no background can be measured, it is an `UndefinedMetricError`.

    Returns:
        The selected events, a copy of the task that names the other classes in `unmeasured`, and a
        sentence about each of these classes.
    """
    reasons: dict[int, str] = {}
    for label in task.measured_labels:
        if reason := _why_unmeasured(events, task, label):
            reasons[label] = reason
    restricted = task._replace(unmeasured=task.unmeasured | reasons.keys())
    # Without signal (0) or without background (all classes are signal) there is nothing to
    # separate.
    num_signals = len(restricted.signal_labels)
    num_classes = len(restricted.measured_labels)
    if num_signals in (0, num_classes):
        raise UndefinedMetricError(
            f"{' '.join(reasons.values())} Add files, or check the `weight` of the samples."
        )
    sentences = [f"{reason} No number counts this class." for reason in reasons.values()]
    is_measured = np.isin(events.labels, restricted.measured_labels)
    rows = np.flatnonzero(is_measured)
    return events.select(rows), restricted, sentences


def _why_unmeasured(events: ScoredEvents, task: EvaluationTask, label: int) -> str:
    """Explain why the test events of a class measure nothing; empty if they measure something.

    They measure something if their weights add up to more than 0.
    """
    weights = events.weights[events.labels == label]
    if not len(weights):
        return f"there are no {task.classes[label]} test events."
    if WeightSums.of(weights).is_positive:
        return ""
    return (
        f"there are no {task.classes[label]} test events that count: {describe_weights(weights)}. "
        "Weights that add up to 0 or less measure nothing."
    )


def accuracy(events: ScoredEvents, replicas: Replicas) -> Estimate:
    """Compute the share of events whose most probable class is the true one, mean over classes.

    A stratum holds the events of one class in one sample. Classes count alike, and samples in
    proportion to their share of the class. The error is half the length of the central interval
    from the replicas, copies of the events with random weights; it stays above 0 at an accuracy of
    1.
    """
    predicted = events.probabilities.argmax(axis=1)
    is_wrong = (predicted != events.labels).astype(np.int64)
    num_classes = len({stratum.label for stratum in replicas.strata})
    shares = []
    for stratum in replicas.strata:
        # `sums` has one row for each bin; the first one (`[:1]`) holds the events that are right.
        weight_right = replicas.sums(stratum, is_wrong, 2)[:1]
        is_right = 1.0 - is_wrong[stratum.rows]
        squares = np.square(replicas.weights[stratum.rows])
        weight2_right = np.array([squares @ is_right])
        # `few=0` adds half an event to either side; a whole event in each class would be too many
        # in the mean.
        share = replicas.shares_passing(stratum, weight_right, weight2_right, few=0)
        weight_in_mean = stratum.fraction / num_classes
        shares.append(share.scaled(weight_in_mean))
    value, low, high = sum_intervals(shares).interval(0)
    return Estimate(value, (high - low) / 2)


def _area_one_vs_rest(probabilities: Floats, replicas: Replicas, label: int) -> Estimate:
    """Compute the area under the ROC curve of a class against all others in equal parts.

    The probability of the class is the score; all classes that have test events count.
    """
    # A stratum holds the events of one class in one sample, so these are all other classes.
    labels = {stratum.label for stratum in replicas.strata}
    backgrounds = sorted(labels - {label})
    fractions = dict.fromkeys(backgrounds, 1 / len(backgrounds))
    # The area needs no cuts, so there are no signal efficiencies.
    no_efficiencies = np.array([])
    score = ReplicatedScore(replicas, probabilities[:, label], {label: 1.0}, no_efficiencies)
    return estimate(score.area(fractions))


def _calibration(events: ScoredEvents, task: EvaluationTask) -> dict[str, Any]:
    """Measure the calibration of each output, with equal total weight of all classes.

    The training loss gives the classes equal weight too, so the probabilities refer to this
    mixture. `error` is the mean distance of predicted and observed shares, `expected` and `p_value`
    are those of a perfect model.
    """
    num_classes = len(task.classes)
    weights = balanced(events.labels, events.weights, num_classes)
    bins_by_class = []
    for label in range(num_classes):
        is_class = events.labels == label
        predicted = events.probabilities[:, label]
        bins_by_class.append(calibration(is_class, predicted, weights))
    errors = [calibration_error(bins) for bins in bins_by_class]
    # The number 2 separates these random numbers from others of the same seed.
    generator = np.random.default_rng([task.seed, 2])
    expected = expected_calibration_errors(
        events.labels, events.probabilities, events.weights, errors, generator=generator
    )
    numbers = {}
    for label in task.outputs:
        bins = bins_by_class[label]
        numbers[task.classes[label]] = {"error": errors[label], **expected[label], "bins": bins}
    return numbers
