"""All numbers of one evaluated model, ready for JSON; every error is of the same replicas of the events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from features.columns import hlf_names
from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import NUM_REPLICAS, Estimate, Replicas, added, estimate
from models.evaluation.calibration import (
    calibration,
    calibration_error,
    expected_calibration_errors,
)
from models.evaluation.curves import (
    KINEMATIC_EDGES,
    EfficiencyCurve,
    background_curve,
    efficiency_against,
    kolmogorov_smirnov,
)
from models.evaluation.discriminant import Mixture, Scored, discriminant
from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents, balanced, weights_in_words
from models.evaluation.significance import significance
from models.evaluation.style import PlotLabels, luminosity_text
from models.evaluation.working_points import FEWEST_EVENTS, measurable_to, working_points

ALL_BACKGROUNDS: Final = "all backgrounds"
#: Signal efficiencies of curves; they contain 0.9, 0.95 and 0.99.
GRID: Final = np.arange(1, 101) / 100


class EvaluationTask(NamedTuple):
    """What an evaluation computes."""

    classes: Sequence[str]
    signals: Sequence[int]
    """The classes that working points keep."""
    working_points: Sequence[float]
    """Wanted signal efficiencies; the first one is that of the efficiencies against kinematics."""
    rates: Rates | None
    """Rates before the classifier; None if cross-sections are unknown."""
    labels: PlotLabels
    seed: int
    by_rate: bool = True
    """Whether backgrounds count in the fractions of their rates, where these are known; else in equal parts."""
    edges: Mapping[str, Sequence[float]] = KINEMATIC_EDGES
    """Bins of the kinematic variables."""
    background_points: Sequence[float] = ()
    """Wanted efficiencies of all backgrounds, at which the signal is reported."""
    expected: Mapping[int, float] | None = None
    """Expected number of events of each class; None: those of the test split."""
    luminosity: float | None = None
    """Integrated luminosity of the expected events [1/pb]; None if it is unknown."""
    uncertainty: float = 0.0
    """Relative uncertainty of the expected background."""
    blind_above: float | None = None
    """Score above which no data are shown; None to show all."""
    unmeasured: frozenset[int] = frozenset()
    """Classes whose test events measure nothing; no number counts them."""

    @property
    def mixture(self) -> Mixture:
        """The backgrounds that working points reject."""
        others = [label for label in self.measured if label not in self.signals]
        return mixture_of(self.classes, others, self.rates if self.by_rate else None)

    @property
    def signal(self) -> Mixture:
        """The signal: its classes in the fractions of their rates, or in equal parts."""
        signals = [label for label in self.signals if label in self.measured]
        mixture = mixture_of(self.classes, signals, self.rates if self.by_rate else None)
        return mixture._replace(words=" + ".join(self.classes[label] for label in signals))

    @property
    def measured(self) -> list[int]:
        """The classes that numbers count."""
        return [label for label in range(len(self.classes)) if label not in self.unmeasured]

    @property
    def rates_of_measured(self) -> Rates | None:
        """The rates of the samples of the classes that numbers count."""
        rates = self.rates
        if rates is None:
            return None
        of_samples = {
            name: rate
            for name, rate in rates.of_samples.items()
            if rates.labels[name] not in self.unmeasured
        }
        return rates._replace(of_samples=of_samples)

    @property
    def labels_of_expected(self) -> PlotLabels:
        """The words on plots of expected events, with their luminosity."""
        if self.expected is None or self.luminosity is None:
            return self.labels
        return self.labels._replace(luminosity=luminosity_text(self.luminosity))

    def scored(self, predictions: pa.Table) -> ScoredEvents:
        """Events of a table from `models.prediction.predict`, their samples in the proportions of the rates."""
        return ScoredEvents.of(predictions, self.rates and self.rates.values)

    def score(self, probabilities: Floats) -> Floats:
        """(num_events,) score of the signal against the mixture."""
        return discriminant(
            probabilities, signal=self.signal.fractions, fractions=self.mixture.fractions
        )

    @property
    def backgrounds(self) -> dict[str, Mapping[int, float]]:
        """The mixture first, and each background alone, by name; of a single background only itself."""
        fractions = self.mixture.fractions
        together = {ALL_BACKGROUNDS: fractions} if len(fractions) > 1 else {}
        return {**together, **{self.classes[label]: {label: 1.0} for label in fractions}}

    @property
    def outputs(self) -> list[int]:
        """The classes whose outputs are measured: of two only the signal, since the other output is 1 minus it."""
        return (
            self.measured
            if len(self.measured) > 2
            else [label for label in self.signals if label in self.measured]
        )


class Measured(NamedTuple):
    """One model."""

    numbers: dict[str, Any]
    curves: dict[str, EfficiencyCurve]
    """Background efficiencies by name of the background."""
    area: Floats
    """(1 + num_replicas,) area under the curve against the mixture."""


def mixture_of(classes: Sequence[str], labels: Sequence[int], rates: Rates | None) -> Mixture:
    """Classes in the fractions of their rates, or in equal parts if these are unknown."""
    if len(labels) == 1:
        return Mixture({labels[0]: 1.0}, classes[labels[0]])
    if rates is None:
        words = " and ".join(classes[each] for each in labels)
        return Mixture(dict.fromkeys(labels, 1 / len(labels)), f"{words} in equal parts")
    sizes = np.array([rates.of_class(label) for label in labels])
    fractions = dict(zip(labels, (sizes / sizes.sum()).tolist(), strict=True))
    parts = ", ".join(
        f"{100 * fraction:.3g} % {classes[label]}" for label, fraction in fractions.items()
    )
    return Mixture(fractions, f"{parts}, by rate")


def measure(
    events: ScoredEvents, train: ScoredEvents | None, replicas: Replicas, task: EvaluationTask
) -> Measured:
    """Numbers of one model on events of the test split, and of the training split to compare the scores with.

    A number that cannot be measured is null, and `not_measurable` has a sentence about it.
    """
    curves, areas, scored_against = {}, {}, {}
    for name, fractions in task.backgrounds.items():
        scored = _scored(events, replicas, task, fractions, GRID)
        curves[name] = background_curve(scored, fractions)
        areas[name] = scored.area(fractions)
        scored_against[name] = scored
    mixture = next(iter(task.backgrounds))
    comparison = {} if train is None else _train_against_test(train, events, task)
    numbers = {
        **_numbers_of_classes(events, replicas, task),
        "auc_against": {name: estimate(area)._asdict() for name, area in areas.items()},
        **_numbers_of_cuts(events, scored_against[mixture], task),
        "train_against_test": comparison,
        "not_measurable": []
        if train is None
        else _uncompared_classes(comparison, train, events, task),
    }
    return Measured(only_finite(numbers), curves, areas[mixture])


def only_finite(content: dict[str, Any]) -> dict[str, Any]:
    """JSON content with null in place of numbers that are not finite, which JSON lacks.

    Examples:
        >>> only_finite({"value": 1.0, "ends": [math.nan, math.inf]})
        {'value': 1.0, 'ends': [None, None]}
    """
    return {key: _finite(value) for key, value in content.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return only_finite(value)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _scored(
    events: ScoredEvents,
    replicas: Replicas,
    task: EvaluationTask,
    fractions: Mapping[int, float],
    wanted: Floats,
) -> Scored:
    """The score against a mixture of backgrounds, with the thresholds of wanted signal efficiencies."""
    score = discriminant(events.probabilities, signal=task.signal.fractions, fractions=fractions)
    return Scored(replicas, score, task.signal.fractions, wanted)


def _numbers_of_classes(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> dict[str, Any]:
    """Numbers of the probabilities, in which the classes count alike."""
    classes, num_classes = task.classes, len(task.classes)
    labels, predicted = events.labels, events.probabilities.argmax(axis=1)
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    shares = np.zeros((num_classes, num_classes))
    np.add.at(counts, (labels, predicted), 1)
    np.add.at(shares, (labels, predicted), balanced(labels, events.weights, num_classes))
    num_of_class = np.bincount(labels, minlength=num_classes).tolist()
    areas = {
        classes[label]: _one_vs_rest(events.probabilities, replicas, label)
        for label in task.outputs
    }
    return {
        "num_events": len(labels),
        "events_per_class": dict(zip(classes, num_of_class, strict=True)),
        "accuracy": accuracy(events, replicas)._asdict(),
        "auc": {name: area._asdict() for name, area in areas.items()},
        "confusion": {
            "classes": list(classes),
            "by_truth": shares.tolist(),
            "events": counts.tolist(),
        },
        "calibration": _calibration(events, task),
    }


def _numbers_of_cuts(events: ScoredEvents, scored: Scored, task: EvaluationTask) -> dict[str, Any]:
    """Numbers behind cuts on the score against all backgrounds."""
    points = points_at_signal(events, scored.replicas, task)
    return {
        "working_points": points,
        "background_points": _points_at_background(events, scored.replicas, task),
        "significance": _significances(events, scored, task),
        "measurable_to": measurable_to(scored),
        "efficiency_against": _kinematics(events, task, points),
    }


def points_at_signal(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> list[dict[str, Any]]:
    """The wanted signal efficiencies, see `models.evaluation.working_points`."""
    scored = _scored(events, replicas, task, task.mixture.fractions, np.array(task.working_points))
    return _points(events, scored, task)


def _points_at_background(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> list[dict[str, Any]]:
    """The wanted efficiencies of all backgrounds."""
    fractions, score = task.mixture.fractions, task.score(events.probabilities)
    wanted = np.array(task.background_points)
    return _points(
        events, Scored(replicas, score, task.signal.fractions, wanted, background=fractions), task
    )


def _points(events: ScoredEvents, scored: Scored, task: EvaluationTask) -> list[dict[str, Any]]:
    points = working_points(
        scored, task.classes, task.mixture, task.rates_of_measured, seed=task.seed
    )
    if task.rates is None or not task.rates.are_events:
        return points
    found = significance(scored, expected_events(events, task), task.uncertainty)
    for place, point in enumerate(points):
        value, low, high = (float(found[name][place]) for name in ("asimov", "low", "high"))
        point["significance"] = {"value": value, "low": low, "high": high}
        # Without background it has no value, or in some replicas no bound.
        if math.isnan(value) or math.isinf(high):
            point["significance"]["limit"] = "lower"
    return points


def replicas_of(events: ScoredEvents, task: EvaluationTask, num: int = NUM_REPLICAS) -> Replicas:
    """Replicas of test events, which are of classes that can be measured."""
    return Replicas(events.labels, events.samples, events.weights, seed=task.seed, num=num)


def measurable(
    events: ScoredEvents, task: EvaluationTask
) -> tuple[ScoredEvents, EvaluationTask, list[str]]:
    """The test events of the classes that can be measured, the evaluation of these, and a sentence about each other.

    A class without test events, or whose weights add up to 0 or less, has no efficiency, area or accuracy. If no signal
    or no background is left, it is an `UndefinedMetricError`.
    """
    reasons = {
        label: reason for label in task.measured if (reason := _why_unmeasured(events, task, label))
    }
    left = [label for label in task.measured if label not in reasons]
    if all(label in task.signals for label in left) or not any(
        label in task.signals for label in left
    ):
        raise UndefinedMetricError(
            f"{' '.join(reasons.values())} Add files, or check the `weight` of the samples."
        )
    sentences = [f"{reason} No number counts this class." for reason in reasons.values()]
    is_counted = np.isin(events.labels, left)
    less = task._replace(unmeasured=task.unmeasured | reasons.keys())
    return events.chosen(np.flatnonzero(is_counted)), less, sentences


def _why_unmeasured(events: ScoredEvents, task: EvaluationTask, label: int) -> str:
    """Why the test events of a class measure nothing; empty if they measure something."""
    weights = events.weights[events.labels == label]
    if not len(weights):
        return f"there are no {task.classes[label]} test events."
    if WeightSums.of(weights).is_positive:
        return ""
    return (
        f"there are no {task.classes[label]} test events that count: {weights_in_words(weights)}. Weights that add up "
        f"to 0 or less measure nothing."
    )


def accuracy(events: ScoredEvents, replicas: Replicas) -> Estimate:
    """Share of the events that get their class, mean over the classes; the error stays above 0 at an accuracy of 1."""
    is_wrong = (events.probabilities.argmax(axis=1) != events.labels).astype(np.int64)
    num_classes = len({stratum.label for stratum in replicas.strata})
    found = []
    for each in replicas.strata:
        squares = np.square(replicas.weights[each.rows]) @ (1.0 - is_wrong[each.rows])
        # One more event of each class would be too many in the mean over classes.
        right = replicas.passing(
            each, replicas.sums(each, is_wrong, 2)[:1], np.array([squares]), few=0
        )
        found.append(right.times(each.fraction / num_classes))
    value, low, high = added(found).interval(0)
    return Estimate(value, (high - low) / 2)


def _one_vs_rest(scores: Floats, replicas: Replicas, index: int) -> Estimate:
    """Area of a class against all others in equal parts."""
    others = sorted({stratum.label for stratum in replicas.strata} - {index})
    scored = Scored(replicas, scores[:, index], {index: 1.0}, np.array([]))
    return estimate(scored.area(dict.fromkeys(others, 1 / len(others))))


def _significances(events: ScoredEvents, scored: Scored, task: EvaluationTask) -> dict[str, Any]:
    """Significances against the cut, where enough background events are left for them; the highest is `best`.

    `best_is_at_end`: the tightest of these cuts is as good within the error, so that a better one may lie beyond.
    """
    found = significance(scored, expected_events(events, task), task.uncertainty)
    is_known = np.isfinite([found[name] for name in ("asimov", "low", "high")]).all(axis=0)
    chosen = is_known & (found["effective"] >= FEWEST_EVENTS)
    columns = {name: values[chosen].tolist() for name, values in found.items()}
    best = int(np.argmax(found["asimov"][chosen])) if chosen.any() else None
    of = "expected events" if task.expected else "test events"
    is_at_end = best is not None and columns["asimov"][0] >= columns["low"][best]
    return {
        "of": of,
        "uncertainty": task.uncertainty,
        "best": best,
        "best_is_at_end": is_at_end,
        **columns,
    }


def expected_events(events: ScoredEvents, task: EvaluationTask) -> Mapping[int, float]:
    """Expected number of events of each class: those of the luminosity, or of the test split if it is unknown."""
    return task.expected or dict(
        enumerate(np.bincount(events.labels, events.weights, len(task.classes)).tolist())
    )


def _calibration(events: ScoredEvents, task: EvaluationTask) -> dict[str, Any]:
    """Calibration with equal total weight of all classes, as in the loss: the probabilities refer to this mixture."""
    labels, scores = events.labels, events.probabilities
    weights = balanced(labels, events.weights, len(task.classes))
    bins = [
        calibration(labels == index, scores[:, index], weights)
        for index in range(len(task.classes))
    ]
    errors = [calibration_error(each) for each in bins]
    generator = np.random.default_rng([task.seed, 2])
    expected = expected_calibration_errors(
        labels, scores, events.weights, errors, generator=generator
    )
    return {
        task.classes[index]: {"error": errors[index], **expected[index], "bins": bins[index]}
        for index in task.outputs
    }


def _train_against_test(
    train: ScoredEvents, test: ScoredEvents, task: EvaluationTask
) -> dict[str, Any]:
    """Kolmogorov-Smirnov test of the two splits for each output and true class."""
    comparison: dict[str, Any] = {}
    for output in task.outputs:
        by_truth = {}
        for truth, name in enumerate(task.classes):
            columns = []
            for events in (train, test):
                is_truth = events.labels == truth
                columns += [events.probabilities[is_truth, output], events.weights[is_truth]]
            by_truth[name] = kolmogorov_smirnov(*columns)
        comparison[task.classes[output]] = by_truth
    return comparison


def _uncompared_classes(
    comparison: Mapping[str, Any], train: ScoredEvents, test: ScoredEvents, task: EvaluationTask
) -> list[str]:
    """A sentence about each class whose two splits cannot be compared."""
    by_truth = next(iter(comparison.values()))
    sentences = []
    for label in task.measured:
        name = task.classes[label]
        if by_truth[name]["p_value"] is None:
            of_train, of_test = (
                weights_in_words(events.weights[events.labels == label]) for events in (train, test)
            )
            sentences.append(
                f"scores of training and test events of {name} cannot be compared: in the training {of_train}, in the "
                f"test {of_test}."
            )
    return sentences


def _kinematics(
    events: ScoredEvents, task: EvaluationTask, points: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Efficiency of each class at the first measurable working point against kinematic variables; else empty."""
    point = next((each for each in points if each["measurable"]), None)
    if point is None:
        return {}
    passing = task.score(events.probabilities) >= point["threshold"]
    found: dict[str, Any] = {}
    for variable, edges in task.edges.items():
        values, by_class = events.hlf[:, hlf_names().index(variable)], {}
        for index, name in enumerate(task.classes):
            chosen = events.labels == index
            bins = efficiency_against(
                values[chosen], passing[chosen], events.weights[chosen], np.asarray(edges)
            )
            by_class[name] = [share and share.as_json() for share in bins]
        found[variable] = {"edges": list(map(float, edges)), "classes": by_class}
    return found
