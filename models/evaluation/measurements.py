"""All numbers of one evaluated model, ready for JSON; every error is of the same replicas of the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from features.columns import hlf_names
from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import NUM_REPLICAS, Estimate, Replicas, added, estimate
from models.evaluation.calibration import calibration, calibration_error, expected_calibration_errors
from models.evaluation.curves import (
    KINEMATIC_EDGES,
    EfficiencyCurve,
    background_curve,
    efficiency_against,
    kolmogorov_smirnov,
)
from models.evaluation.discriminant import Mixture, Scored, discriminant
from models.evaluation.intervals import Floats, WeightSums, efficiency
from models.evaluation.rates import Rates, rates_behind
from models.evaluation.scored_events import ScoredEvents, balanced
from models.evaluation.significance import significance
from models.evaluation.style import PlotLabels

ALL_BACKGROUNDS: Final = "all backgrounds"
#: Least expected number of signal events below a threshold; with fewer, its position is mostly chance.
FEWEST_FAILING: Final = 10.0
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
    uncertainty: float = 0.0
    """Relative uncertainty of the expected background."""
    blind_above: float | None = None
    """Score above which no data are shown; None to show all."""

    @property
    def mixture(self) -> Mixture:
        """The backgrounds that working points reject."""
        others = [label for label in range(len(self.classes)) if label not in self.signals]
        return mixture_of(self.classes, others, self.rates if self.by_rate else None)

    @property
    def signal(self) -> Mixture:
        """The signal: its classes in the fractions of their rates, or in equal parts."""
        found = mixture_of(self.classes, self.signals, self.rates if self.by_rate else None)
        return found._replace(words=" + ".join(self.classes[label] for label in self.signals))

    def scored(self, predictions: pa.Table) -> ScoredEvents:
        """Events of a table from `models.prediction.predict`, their samples in the proportions of the rates."""
        return ScoredEvents.of(predictions, self.rates and self.rates.values)

    def score(self, probabilities: Floats) -> Floats:
        """(num_events,) score of the signal against the mixture."""
        return discriminant(probabilities, signal=self.signal.fractions, fractions=self.mixture.fractions)

    @property
    def backgrounds(self) -> dict[str, Mapping[int, float]]:
        """The mixture first, and each background alone, by name; of a single background only itself."""
        fractions = self.mixture.fractions
        together = {ALL_BACKGROUNDS: fractions} if len(fractions) > 1 else {}
        return {**together, **{self.classes[label]: {label: 1.0} for label in fractions}}

    @property
    def outputs(self) -> list[int]:
        """The classes whose outputs are measured: of two only the signal, since the other output is 1 minus it."""
        return list(range(len(self.classes))) if len(self.classes) > 2 else list(self.signals)


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
    parts = ", ".join(f"{100 * fraction:.3g} % {classes[label]}" for label, fraction in fractions.items())
    return Mixture(fractions, f"{parts}, by rate")


def measure(events: ScoredEvents, train: ScoredEvents | None, replicas: Replicas, task: EvaluationTask) -> Measured:
    """Numbers of one model on events of the test split, and of the training split to compare the scores with.

    A class without training events, or whose weights add up to 0 or less, is an `UndefinedMetricError`.
    """
    classes, signal = task.classes, task.signal.fractions
    if train is not None:
        what = "training events to compare with, or their weights add up to 0 or less. Raise evaluate.train_events"
        _refuse_missing(train, classes, what)
    labels, scores, weights, _, _ = events
    curves, areas = {}, {}
    points: list[dict[str, Any]] = []
    for name, fractions in task.backgrounds.items():
        score = discriminant(scores, signal=signal, fractions=fractions)
        scored = Scored(replicas, score, signal, GRID)
        curves[name], areas[name] = background_curve(scored, fractions), scored.area(fractions)
        if not points:
            significances = _significances(events, scored, task)
            points = _points(events, Scored(replicas, score, signal, np.array(task.working_points)), task)
            wanted = np.array(task.background_points)
            kept = _points(events, Scored(replicas, score, signal, wanted, background=fractions), task)
    counts, shares = (np.zeros((len(classes), len(classes)), dtype=kind) for kind in (np.int64, np.float64))
    for matrix, each in ((counts, 1), (shares, balanced(labels, weights, len(classes)))):
        np.add.at(matrix, (labels, scores.argmax(axis=1)), each)
    numbers = {
        "num_events": len(labels),
        "events_per_class": dict(zip(classes, np.bincount(labels, minlength=len(classes)).tolist(), strict=True)),
        "accuracy": _accuracy(events, replicas)._asdict(),
        "auc": {classes[index]: _one_vs_rest(scores, replicas, index)._asdict() for index in task.outputs},
        "auc_against": {name: estimate(each)._asdict() for name, each in areas.items()},
        "confusion": {"classes": list(classes), "by_truth": shares.tolist(), "events": counts.tolist()},
        "working_points": points,
        "background_points": kept,
        "significance": significances,
        "measurable_to": 1 - FEWEST_FAILING / _effective(events, signal),
        "calibration": _calibration(events, task),
        "train_against_test": {} if train is None else _shapes(train, events, task),
        "efficiency_against": _kinematics(events, task, points),
    }
    return Measured(numbers, curves, next(iter(areas.values())))


def replicas_of(events: ScoredEvents, task: EvaluationTask, num: int = NUM_REPLICAS) -> Replicas:
    """Replicas of test events.

    A class without events, or whose weights add up to 0 or less, is an `UndefinedMetricError`.
    """
    _refuse_missing(events, task.classes, "test events, or their weights add up to 0 or less. Add files")
    return Replicas(events.labels, events.samples, events.weights, seed=task.seed, num=num)


def _refuse_missing(events: ScoredEvents, classes: Sequence[str], what: str) -> None:
    missing = [
        name
        for index, name in enumerate(classes)
        if not WeightSums.of(events.weights[events.labels == index]).is_positive
    ]
    if missing:
        raise UndefinedMetricError(f"there are no {' or '.join(missing)} {what}.")


def _accuracy(events: ScoredEvents, replicas: Replicas) -> Estimate:
    """Share of the events that get their class, mean over the classes; the error stays above 0 at an accuracy of 1."""
    is_wrong = (events.probabilities.argmax(axis=1) != events.labels).astype(np.int64)
    found = []
    for each in replicas.strata:
        squares = np.square(replicas.weights[each.rows]) @ (1.0 - is_wrong[each.rows])
        # One more event of each class would be too many in the mean over classes.
        right = replicas.passing(each, replicas.sums(each, is_wrong, 2)[:1], np.array([squares]), few=0)
        found.append(right.times(each.fraction / events.probabilities.shape[1]))
    value, low, high = added(found).interval(0)
    return Estimate(value, (high - low) / 2)


def _one_vs_rest(scores: Floats, replicas: Replicas, index: int) -> Estimate:
    """Area of a class against all others in equal parts."""
    others = [label for label in range(scores.shape[1]) if label != index]
    scored = Scored(replicas, scores[:, index], {index: 1.0}, np.array([]))
    return estimate(scored.area(dict.fromkeys(others, 1 / len(others))))


def _points(events: ScoredEvents, scored: Scored, task: EvaluationTask) -> list[dict[str, Any]]:
    """Thresholds that keep shares of the signal, or that let shares of all backgrounds pass, and what passes them."""
    of_signal = scored.background is None
    size, name = _effective(events, scored.background or scored.signal), "num_failing" if of_signal else "num_passing"
    weights, ours = scored.mixed(scored.signal), scored.of_mixture(scored.signal)
    fractions = task.mixture.fractions
    shares = {task.classes[label]: scored.of_class(label) for label in fractions}
    together = scored.of_mixture(fractions)
    rates = rates_behind(scored, task.rates, task.classes, seed=task.seed) if task.rates else repeat({})
    found = []
    for point, (wanted, rate) in enumerate(zip(scored.wanted.tolist(), rates, strict=False)):
        place, number = scored.points[point, 0], size * (1 - wanted if of_signal else wanted)
        # Replicas keep the same share of the signal; how far it may be another is the interval of a count.
        kept = efficiency(scored.place[weights != 0] <= place, weights[weights != 0])
        found.append(
            {
                "wanted": wanted,
                "threshold": float(scored.thresholds[place]),
                "measurable": number >= FEWEST_FAILING,
                name: number,
                "signal": (kept if of_signal else ours.interval(point))._asdict(),
                "backgrounds": {background: each.interval(point)._asdict() for background, each in shares.items()},
                "all_backgrounds": together.interval(point)._asdict(),
                **rate,
            }
        )
    return found


def _significances(events: ScoredEvents, scored: Scored, task: EvaluationTask) -> dict[str, Any]:
    """Significances against the cut, where enough background events are left for them; the highest is `best`.

    `best_is_at_end`: the tightest of these cuts is as good within the error, so that a better one may lie beyond.
    """
    found = significance(scored, expected_events(events, task), task.uncertainty)
    is_known = np.isfinite([found[name] for name in ("asimov", "low", "high")]).all(axis=0)
    chosen = is_known & (found["effective"] >= FEWEST_FAILING)
    columns = {name: values[chosen].tolist() for name, values in found.items()}
    best = int(np.argmax(found["asimov"][chosen])) if chosen.any() else None
    of = "expected events" if task.expected else "test events"
    is_at_end = best is not None and columns["asimov"][0] >= columns["low"][best]
    return {"of": of, "uncertainty": task.uncertainty, "best": best, "best_is_at_end": is_at_end, **columns}


def expected_events(events: ScoredEvents, task: EvaluationTask) -> Mapping[int, float]:
    """Expected number of events of each class: those of the luminosity, or of the test split if it is unknown."""
    return task.expected or dict(enumerate(np.bincount(events.labels, events.weights, len(task.classes)).tolist()))


def _effective(events: ScoredEvents, fractions: Mapping[int, float]) -> float:
    """Effective number of events of a mixture of classes."""
    totals = np.bincount(events.labels, events.weights, max(fractions) + 1)
    parts = [events.weights[events.labels == label] * each / totals[label] for label, each in fractions.items()]
    return WeightSums.of(np.concatenate(parts)).counted(1.0)[0]


def _calibration(events: ScoredEvents, task: EvaluationTask) -> dict[str, Any]:
    """Calibration with equal total weight of all classes, as in the loss: the probabilities refer to this mixture."""
    labels, scores = events.labels, events.probabilities
    weights = balanced(labels, events.weights, len(task.classes))
    bins = [calibration(labels == index, scores[:, index], weights) for index in range(len(task.classes))]
    errors = [calibration_error(each) for each in bins]
    generator = np.random.default_rng([task.seed, 2])
    expected = expected_calibration_errors(labels, scores, events.weights, errors, generator=generator)
    return {
        task.classes[index]: {"error": errors[index], **expected[index], "bins": bins[index]} for index in task.outputs
    }


def _shapes(train: ScoredEvents, test: ScoredEvents, task: EvaluationTask) -> dict[str, Any]:
    """Kolmogorov-Smirnov test of the two splits for each output and true class."""

    def of(events: ScoredEvents, output: int, truth: int) -> tuple[Floats, Floats]:
        chosen = events.labels == truth
        return events.probabilities[chosen, output], events.weights[chosen]

    return {
        task.classes[output]: {
            name: kolmogorov_smirnov(*of(train, output, truth), *of(test, output, truth))
            for truth, name in enumerate(task.classes)
        }
        for output in task.outputs
    }


def _kinematics(events: ScoredEvents, task: EvaluationTask, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
            bins = efficiency_against(values[chosen], passing[chosen], events.weights[chosen], np.asarray(edges))
            by_class[name] = [each and each._asdict() for each in bins]
        found[variable] = {"edges": list(map(float, edges)), "classes": by_class}
    return found
