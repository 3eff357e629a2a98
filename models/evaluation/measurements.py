"""Measures all numbers of one evaluated model, ready for JSON.

Every error comes from the same bootstrap replicas of the events: copies of the test sample with
random event weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from features.columns import hlf_names
from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import (
    NUM_REPLICAS,
    Estimate,
    Replicas,
    estimate,
    sum_intervals,
)
from models.evaluation.calibration import (
    calibration,
    calibration_error,
    expected_calibration_errors,
)
from models.evaluation.curves import (
    EfficiencyCurve,
    background_curve,
    efficiency_against,
    kolmogorov_smirnov,
)
from models.evaluation.discriminant import ReplicatedScore, discriminant
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.scored_events import ScoredEvents, balanced, describe_weights
from models.evaluation.significance import significance
from models.evaluation.working_points import (
    FEWEST_EVENTS,
    highest_measurable_efficiency,
    working_points,
)

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
    scores = {
        name: _score_against(events, replicas, task, fractions, GRID)
        for name, fractions in task.backgrounds.items()
    }
    curves, areas = {}, {}
    for name, fractions in task.backgrounds.items():
        curves[name] = background_curve(scores[name], fractions)
        areas[name] = scores[name].area(fractions)
    comparison: dict[str, Any] = {}
    uncompared: list[str] = []
    if train is not None:
        comparison = _train_against_test(train, events, task)
        uncompared = _uncompared_classes(comparison, train, events, task)
    # The first background is all backgrounds together, or the only one.
    mixture = next(iter(task.backgrounds))
    numbers = {
        **_numbers_of_classes(events, replicas, task),
        "auc_against": {name: estimate(area)._asdict() for name, area in areas.items()},
        **_numbers_of_cuts(events, scores[mixture], task),
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


def _score_against(
    events: ScoredEvents,
    replicas: Replicas,
    task: EvaluationTask,
    fractions: Mapping[int, float],
    signal_shares: Floats,
) -> ReplicatedScore:
    """Score events against a mixture of backgrounds, with a cut at each of some efficiencies.

    `fractions` are those of the backgrounds in the mixture. `signal_shares` are the signal
    efficiencies, (num_points,).
    """
    scores = discriminant(events.probabilities, signal=task.signal.fractions, fractions=fractions)
    return ReplicatedScore(replicas, scores, task.signal.fractions, signal_shares)


def _numbers_of_classes(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> dict[str, Any]:
    """Measure accuracy, areas, confusion matrix and calibration, in which the classes count alike.

    The areas under the ROC curve (`auc`) are those of one class against all others in equal parts.
    """
    events_per_class = np.bincount(events.labels, minlength=len(task.classes)).tolist()
    # With two classes only the signal's output is measured: the other one is 1 minus it.
    areas = {
        task.classes[label]: _area_one_vs_rest(events.probabilities, replicas, label)._asdict()
        for label in task.outputs
    }
    return {
        "num_events": len(events.labels),
        "events_per_class": dict(zip(task.classes, events_per_class, strict=True)),
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
    cell = events.labels, events.probabilities.argmax(axis=1)
    shares = np.zeros((num_classes, num_classes))
    # Balanced weights of a class add up to 1, so each row adds up to 1.
    np.add.at(shares, cell, balanced(events.labels, events.weights, num_classes))
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(counts, cell, 1)
    return {"classes": list(classes), "by_truth": shares.tolist(), "events": counts.tolist()}


def _numbers_of_cuts(
    events: ScoredEvents, score: ReplicatedScore, task: EvaluationTask
) -> dict[str, Any]:
    """Measure working points, significances and efficiencies behind cuts on the score.

    `score` is that against all backgrounds, with cuts at the signal efficiencies of the curves.
    """
    # The points are also needed for the efficiencies against kinematics.
    points = points_at_signal(events, score.replicas, task)
    return {
        "working_points": points,
        "background_points": _points_at_background(events, score.replicas, task),
        "significance": _significances(events, score, task),
        "measurable_to": highest_measurable_efficiency(score),
        "efficiency_against": _kinematics(events, task, points),
    }


def points_at_signal(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> list[dict[str, Any]]:
    """Measure the working points at the signal efficiencies of a task.

    `models.evaluation.working_points` explains their numbers.
    """
    efficiencies = np.array(task.working_points)
    score = _score_against(events, replicas, task, task.mixture.fractions, efficiencies)
    return _points(events, score, task)


def _points_at_background(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> list[dict[str, Any]]:
    """Measure the working points at given efficiencies of all backgrounds together."""
    score = ReplicatedScore(
        replicas,
        task.score(events.probabilities),
        task.signal.fractions,
        np.array(task.background_points),
        background=task.mixture.fractions,
    )
    return _points(events, score, task)


def _points(
    events: ScoredEvents, score: ReplicatedScore, task: EvaluationTask
) -> list[dict[str, Any]]:
    """Return the numbers at each cut of a score; for expected events with the significance.

    The significance is added only where `task.rates` are numbers of events, as an offline analysis
    has them.
    """
    points = working_points(
        score, task.classes, task.mixture, task.rates_of_measured, seed=task.seed
    )
    if task.rates is None or not task.rates.are_events:
        return points
    # Each column has one number for each cut, in the order of the points.
    columns = significance(score, task.expected_events(events), task.uncertainty)
    for index, point in enumerate(points):
        value = float(columns["asimov"][index])
        low, high = float(columns["low"][index]), float(columns["high"][index])
        point["significance"] = {"value": value, "low": low, "high": high}
        # Without background there is no value, or some replicas have no bound: `low` is then a
        # lower limit.
        if math.isnan(value) or math.isinf(high):
            point["significance"]["limit"] = "lower"
    return points


def replicas_of(events: ScoredEvents, task: EvaluationTask, num: int = NUM_REPLICAS) -> Replicas:
    """Make bootstrap replicas of test events, all of which are of measurable classes."""
    return Replicas(events.labels, events.samples, events.weights, seed=task.seed, num=num)


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
    num_signals, num_classes = len(restricted.signal_labels), len(restricted.measured_labels)
    if num_signals in (0, num_classes):
        raise UndefinedMetricError(
            f"{' '.join(reasons.values())} Add files, or check the `weight` of the samples."
        )
    sentences = [f"{reason} No number counts this class." for reason in reasons.values()]
    rows = np.flatnonzero(np.isin(events.labels, restricted.measured_labels))
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
    is_wrong = (events.probabilities.argmax(axis=1) != events.labels).astype(np.int64)
    num_classes = len({stratum.label for stratum in replicas.strata})
    shares = []
    for stratum in replicas.strata:
        # `sums` has one row for each bin; the first one (`[:1]`) holds the events that are right.
        weight_right = replicas.sums(stratum, is_wrong, 2)[:1]
        is_right = 1.0 - is_wrong[stratum.rows]
        weight2_right = np.square(replicas.weights[stratum.rows]) @ is_right
        # `few=0` adds half an event to either side; a whole event in each class would be too many
        # in the mean.
        share = replicas.shares_passing(stratum, weight_right, np.array([weight2_right]), few=0)
        shares.append(share.scaled(stratum.fraction / num_classes))
    value, low, high = sum_intervals(shares).interval(0)
    return Estimate(value, (high - low) / 2)


def _area_one_vs_rest(probabilities: Floats, replicas: Replicas, label: int) -> Estimate:
    """Compute the area under the ROC curve of a class against all others in equal parts.

    The probability of the class is the score; all classes that have test events count.
    """
    # A stratum holds the events of one class in one sample, so these are all other classes.
    backgrounds = sorted({stratum.label for stratum in replicas.strata} - {label})
    # The area needs no cuts, so there are no signal efficiencies.
    score = ReplicatedScore(replicas, probabilities[:, label], {label: 1.0}, np.array([]))
    return estimate(score.area(dict.fromkeys(backgrounds, 1 / len(backgrounds))))


def _significances(
    events: ScoredEvents, score: ReplicatedScore, task: EvaluationTask
) -> dict[str, Any]:
    """Collect the significances at each cut behind which enough background events remain.

    The result has one list for each quantity, with an entry for each cut that remains. Too few
    background events, or an interval that is not finite, leave a cut out. `best` is the index of
    the cut with the highest significance, None without any cut. `best_is_at_end` says that the
    tightest of these cuts is as good within the error, so that a better one may lie beyond.
    """
    numbers = significance(score, task.expected_events(events), task.uncertainty)
    is_finite = np.isfinite([numbers["asimov"], numbers["low"], numbers["high"]]).all(axis=0)
    is_measurable = is_finite & (numbers["effective"] >= FEWEST_EVENTS)
    columns = {name: values[is_measurable].tolist() for name, values in numbers.items()}
    best, best_is_at_end = None, False
    if is_measurable.any():
        best = int(np.argmax(columns["asimov"]))
        # Index 0 is the tightest cut; `low` is the lower end of the interval of the best one.
        best_is_at_end = columns["asimov"][0] >= columns["low"][best]
    return {
        "of": "expected events" if task.expected else "test events",
        "uncertainty": task.uncertainty,
        "best": best,
        "best_is_at_end": best_is_at_end,
        **columns,
    }


def _calibration(events: ScoredEvents, task: EvaluationTask) -> dict[str, Any]:
    """Measure the calibration of each output, with equal total weight of all classes.

    The training loss gives the classes equal weight too, so the probabilities refer to this
    mixture. `error` is the mean distance of predicted and observed shares, `expected` and `p_value`
    are those of a perfect model.
    """
    labels, probabilities = events.labels, events.probabilities
    weights = balanced(labels, events.weights, len(task.classes))
    bins_by_class = [
        calibration(labels == label, probabilities[:, label], weights)
        for label in range(len(task.classes))
    ]
    errors = [calibration_error(bins) for bins in bins_by_class]
    expected = expected_calibration_errors(
        labels,
        probabilities,
        events.weights,
        errors,
        # The number 2 separates these random numbers from others of the same seed.
        generator=np.random.default_rng([task.seed, 2]),
    )
    return {
        task.classes[label]: {
            "error": errors[label],
            **expected[label],
            "bins": bins_by_class[label],
        }
        for label in task.outputs
    }


def _train_against_test(
    train: ScoredEvents, test: ScoredEvents, task: EvaluationTask
) -> dict[str, Any]:
    """Compare the outputs of training and test events by a Kolmogorov-Smirnov test.

    There is one test for each output and each true class. A difference hints at overtraining.
    """
    comparison: dict[str, Any] = {}
    for output in task.outputs:
        by_truth = {}
        for label, name in enumerate(task.classes):
            in_train, in_test = train.labels == label, test.labels == label
            # Only events of the same true class are comparable.
            by_truth[name] = kolmogorov_smirnov(
                train.probabilities[in_train, output],
                train.weights[in_train],
                test.probabilities[in_test, output],
                test.weights[in_test],
            )
        comparison[task.classes[output]] = by_truth
    return comparison


def _uncompared_classes(
    comparison: Mapping[str, Any], train: ScoredEvents, test: ScoredEvents, task: EvaluationTask
) -> list[str]:
    """Write a sentence about each class whose training and test events cannot be compared.

    The Kolmogorov-Smirnov test then has no p-value: a split has too few events, or no weight.
    """
    # Whether a comparison is possible is the same for all outputs, so the first one is enough.
    by_truth = next(iter(comparison.values()))
    sentences = []
    for label in task.measured_labels:
        name = task.classes[label]
        if by_truth[name]["p_value"] is None:
            train_weights = describe_weights(train.weights[train.labels == label])
            test_weights = describe_weights(test.weights[test.labels == label])
            sentences.append(
                f"scores of training and test events of {name} cannot be compared: "
                f"in the training {train_weights}, in the test {test_weights}."
            )
    return sentences


def _kinematics(
    events: ScoredEvents, task: EvaluationTask, points: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Measure the efficiency of each class in bins of kinematic variables, at one working point.

    The point is the first measurable one of the task; without any the result is empty. A bin
    without weight is null.
    """
    measurable_points = [point for point in points if point["measurable"]]
    if not measurable_points:
        return {}
    passing = task.score(events.probabilities) >= measurable_points[0]["threshold"]
    efficiencies: dict[str, Any] = {}
    for variable, edges in task.edges.items():
        values = events.hlf[:, hlf_names().index(variable)]
        by_class = {}
        for label, name in enumerate(task.classes):
            in_class = events.labels == label
            bins = efficiency_against(
                values[in_class], passing[in_class], events.weights[in_class], np.asarray(edges)
            )
            by_class[name] = [None if share is None else share.as_json() for share in bins]
        efficiencies[variable] = {"edges": list(map(float, edges)), "classes": by_class}
    return efficiencies
