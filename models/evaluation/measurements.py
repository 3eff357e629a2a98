"""All numbers of one evaluated model, ready for JSON, with event weights; the calibration uses class weights too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.columns import HLF_NAMES
from models.errors import UndefinedMetricError
from models.evaluation.curves import (
    KINEMATIC_EDGES,
    auc_of_two,
    calibration,
    calibration_error,
    efficiency_against,
    kolmogorov_smirnov,
    likelihood_ratio,
)
from models.evaluation.efficiencies import WorkingPoint, efficiency, purity, working_point
from models.evaluation.importance import permutation_importance
from models.evaluation.metrics import (
    accuracy,
    auc_one_vs_rest,
    confusion_matrix,
    effective_size,
    within_classes,
)
from models.prediction import Predictor, rows_of

Floats = NDArray[np.float64]

#: Index of the working point for the efficiencies against kinematics.
SHOWN_POINT: Final = 0


class ScoredEvents(NamedTuple):
    """Predictions as arrays."""

    labels: NDArray[np.int64]
    """(num_events,) true classes."""
    probabilities: Floats
    """(num_events, num_classes) predicted probabilities."""
    weights: Floats
    """(num_events,) physics weights within a class; each class adds up to its number of events."""
    hlf: NDArray[np.float32]
    """(num_events, NUM_HLF) raw high-level features."""
    samples: NDArray[np.str_]
    """(num_events,) names of the samples."""

    @classmethod
    def of(cls, predictions: pa.Table) -> ScoredEvents:
        """The events of a table from `models.prediction.predict` with the column `hlf`."""
        labels = predictions["label"].to_numpy()
        return cls(
            labels,
            rows_of(predictions, "probability").astype(np.float64),
            within_classes(labels, predictions["weight"].to_numpy()),
            rows_of(predictions, "hlf"),
            predictions["sample"].to_numpy().astype(str),
        )

    def first(self, count: int) -> ScoredEvents:
        """The first `count` events: a random sample, since rows are mixed."""
        return ScoredEvents._make(column[:count] for column in self)


class Rates(NamedTuple):
    """Rates before the classifier."""

    per_second: dict[str, dict[str, float]]
    """Rate of each sample of each class [1/s]: luminosity x cross-section x efficiency of the selection."""

    def before(self) -> dict[str, float]:
        """Rate of each class [1/s]."""
        return {name: sum(samples.values()) for name, samples in self.per_second.items()}

    def behind(self, events: ScoredEvents, point: WorkingPoint, classes: Sequence[str], signal: int) -> dict[str, Any]:
        """Rates of each class behind a working point, and the purity; None for a purity that is not defined.

        Every sample passes with its own efficiency; one without events of positive total weight, with its class'.
        """
        passing = events.probabilities[:, signal] >= point.threshold
        of_class = {**point.backgrounds, signal: point.signal}
        rates = []
        for index, name in enumerate(classes):
            total = 0.0
            for sample, per_second in self.per_second[name].items():
                own = (events.labels == index) & (events.samples == sample)
                is_known = events.weights[own].sum() > 0
                share = efficiency(passing[own], events.weights[own]) if is_known else of_class[index]
                total += per_second * share.value
            rates.append(total)
        pure = purity(rates, signal)
        # Negative weights may make the total rate 0 or less. JSON has no NaN, so write null.
        return {"rates": dict(zip(classes, rates, strict=True)), "purity": pure if math.isfinite(pure) else None}


def measure(
    events: ScoredEvents,
    train: ScoredEvents | None,
    classes: Sequence[str],
    *,
    signal: int,
    working_points: Sequence[float],
    rates: Rates | None,
) -> dict[str, Any]:
    """Numbers of one model on some events.

    Args:
        events: Events of the test split.
        train: Events of the training split, to compare the scores with; None if there are none.
        classes: Names of the classes.
        signal: The class that working points keep.
        working_points: Wanted signal efficiencies.
        rates: Rates before the classifier; None if cross-sections are unknown.

    Raises:
        UndefinedMetricError: A class has no events, or its weights add up to 0 or less.
    """
    _refuse_missing(events, classes, "test events, or their weights add up to 0 or less. Add files")
    if train is not None:
        what = "training events to compare with, or their weights add up to 0 or less. Raise evaluate.train_events"
        _refuse_missing(train, classes, what)
    labels, scores, weights = events.labels, events.probabilities, events.weights
    points = [
        working_point(labels, scores[:, signal], weights, signal=signal, classes=range(len(classes)), wanted=wanted)
        for wanted in working_points
    ]
    return {
        "num_events": len(labels),
        "num_events_effective": effective_size(weights),
        "events_per_class": dict(zip(classes, np.bincount(labels, minlength=len(classes)).tolist(), strict=True)),
        "accuracy": accuracy(labels, scores, weights)._asdict(),
        "auc": {
            name: auc_one_vs_rest(labels, scores[:, index], weights, signal=index)._asdict()
            for index, name in enumerate(classes)
        },
        "confusion": {"classes": list(classes), "by_truth": confusion_matrix(labels, scores, weights).tolist()},
        "working_points": [_point_json(events, point, classes, signal, rates) for point in points],
        "auc_of_two": {
            name: auc_of_two(
                labels,
                likelihood_ratio(scores, signal=signal, background=index),
                weights,
                signal=signal,
                background=index,
            )._asdict()
            for index, name in enumerate(classes)
            if index != signal
        },
        "calibration": _calibration(events, classes),
        "train_against_test": {} if train is None else _shapes(train, events, classes),
        "efficiency_against": _kinematics(events, classes, points[SHOWN_POINT]) if points else {},
    }


def importance(
    model: Predictor, events: ScoredEvents, *, signal: int, generator: np.random.Generator
) -> dict[str, Any]:
    """Loss of area under the signal's ROC curve when a high-level feature is shuffled among the events.

    Args:
        model: A model whose only input is `hlf`.
        events: The events.
        signal: The signal class.
        generator: Random generator of the shuffles.
    """

    def area(hlf: NDArray[Any]) -> float:
        scores = model.probabilities({"hlf": hlf})[:, signal].astype(np.float64)
        return auc_one_vs_rest(events.labels, scores, events.weights, signal=signal).value

    found = permutation_importance(area, events.hlf, generator=generator)
    return {name: each._asdict() for name, each in zip(HLF_NAMES, found, strict=True)}


def _refuse_missing(events: ScoredEvents, classes: Sequence[str], what: str) -> None:
    missing = [name for index, name in enumerate(classes) if not events.weights[events.labels == index].sum() > 0]
    if missing:
        raise UndefinedMetricError(f"there are no {' or '.join(missing)} {what}.")


def _point_json(
    events: ScoredEvents, point: WorkingPoint, classes: Sequence[str], signal: int, rates: Rates | None
) -> dict[str, Any]:
    return {
        "wanted": point.wanted,
        "threshold": point.threshold,
        "measurable": point.is_measurable,
        "num_failing": point.num_failing,
        "signal": point.signal._asdict(),
        "backgrounds": {classes[index]: each._asdict() for index, each in point.backgrounds.items()},
        **({} if rates is None else rates.behind(events, point, classes, signal)),
    }


def _calibration(events: ScoredEvents, classes: Sequence[str]) -> dict[str, Any]:
    """Calibration with equal total weight of all classes, as in the loss: the probabilities refer to this mixture."""
    sums = np.bincount(events.labels, events.weights, minlength=len(classes))
    weights = events.weights / sums[events.labels]
    found = {}
    for index, name in enumerate(classes):
        bins = calibration(events.labels == index, events.probabilities[:, index], weights)
        content = [{**each._asdict(), "observed": each.observed._asdict()} for each in bins]
        found[name] = {"error": calibration_error(bins), "bins": content}
    return found


def _shapes(train: ScoredEvents, test: ScoredEvents, classes: Sequence[str]) -> dict[str, Any]:
    """Kolmogorov-Smirnov test of the two splits for each output and true class."""
    found: dict[str, Any] = {}
    for output, name in enumerate(classes):
        found[name] = {}
        for index, truth in enumerate(classes):
            first, second = (each.labels == index for each in (train, test))
            found[name][truth] = kolmogorov_smirnov(
                train.probabilities[first, output],
                train.weights[first],
                test.probabilities[second, output],
                test.weights[second],
            )._asdict()
    return found


def _kinematics(events: ScoredEvents, classes: Sequence[str], point: WorkingPoint) -> dict[str, Any]:
    """Efficiency of each class at a working point against kinematic variables."""
    signal = next(index for index in range(len(classes)) if index not in point.backgrounds)
    passing = events.probabilities[:, signal] >= point.threshold
    found: dict[str, Any] = {}
    for variable, edges in KINEMATIC_EDGES.items():
        values = events.hlf[:, HLF_NAMES.index(variable)]
        by_class = {}
        for index, name in enumerate(classes):
            chosen = events.labels == index
            bins = efficiency_against(values[chosen], passing[chosen], events.weights[chosen], np.asarray(edges))
            by_class[name] = [None if each is None else each._asdict() for each in bins]
        found[variable] = {"edges": list(map(float, edges)), "classes": by_class}
    return found
