"""What other weights of the generator and shifted inputs change in the numbers of a model.

Thresholds stay those of the working points: a trigger is set once. Events, and so most of their chance, are common; the
error of a shift is that of the difference, from each event's share in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.measurements import EvaluationTask
from models.evaluation.scored_events import ScoredEvents, within_classes


class Varied(NamedTuple):
    """The test events with other weights or other scores."""

    weights: Floats
    """(num_events,) physics weights within a class."""
    probabilities: Floats
    """(num_events, num_classes)."""
    is_selected: NDArray[np.bool_]
    """(num_events,) whether the event still passes the selection; if not, it passes no threshold."""

    def chosen(self, rows: NDArray[np.int64]) -> Varied:
        """The events of some numbers."""
        return Varied._make(column[rows] for column in self)


def with_weights(events: ScoredEvents, weights: Floats) -> Varied:
    """The events with other weights, of any scale."""
    scaled = within_classes(events.labels, weights)
    return Varied(scaled, events.probabilities, np.ones(len(events.labels), dtype=np.bool_))


def variations(
    events: ScoredEvents,
    varied: Mapping[str, Varied],
    task: EvaluationTask,
    thresholds: Sequence[float],
) -> dict[str, Any]:
    """Accuracy, area under the ROC curve, and efficiencies at each working point, of each variation, and their shifts.

    Each point has the given threshold.

    Returns:
        By variation: `accuracy`, `auc` against all backgrounds and, at each of `working_points`, `efficiencies` by
        class, each with `value`, `shift` from the events as they are, and `error` of the shift. Null where a class that
        counts has no weight.
    """
    rows = np.flatnonzero(np.isin(events.labels, task.measured))
    labels, nominal = events.labels[rows], with_weights(events, events.weights).chosen(rows)
    return {
        name: _one(labels, (nominal, each.chosen(rows)), task, thresholds)
        for name, each in varied.items()
    }


def envelope(varied: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far several variations, at least one, spread, in the form of one of them.

    Each number has the largest shift `down` and `up`, 0 if there is none, and the root mean square `rms` of all; it is
    null if one of the variations has no such number.
    """
    points = [
        {
            "wanted": same[0]["wanted"],
            "efficiencies": {
                name: _extent([point["efficiencies"][name] for point in same])
                for name in same[0]["efficiencies"]
            },
        }
        for same in zip(*(each["working_points"] for each in varied), strict=True)
    ]
    overall = {name: _extent([each[name] for each in varied]) for name in ("accuracy", "auc")}
    return {**overall, "working_points": points}


def _extent(found: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    shifts = [each["shift"] for each in found if each is not None]
    if len(shifts) < len(found):
        return None
    return {
        "down": min(0.0, *shifts),
        "up": max(0.0, *shifts),
        "rms": math.hypot(*shifts) / len(shifts) ** 0.5,
    }


def _one(
    labels: NDArray[np.int64],
    both: tuple[Varied, Varied],
    task: EvaluationTask,
    thresholds: Sequence[float],
) -> dict[str, Any]:
    chosen = [labels == label for label in task.measured]
    names = [task.classes[label] for label in task.measured]

    def shifts(passing: Sequence[NDArray[np.bool_]]) -> list[dict[str, float]]:
        """Of the share of each class that passes before and after."""
        kept = [each & of.is_selected for each, of in zip(passing, both, strict=True)]
        return [
            _difference(
                *(_share(of.weights[rows], each[rows]) for each, of in zip(kept, both, strict=True))
            )
            for rows in chosen
        ]

    scores = [task.score(each.probabilities) for each in both]
    points = []
    for wanted, threshold in zip(task.working_points, thresholds, strict=True):
        found = map(_known, shifts([score >= threshold for score in scores]))
        efficiencies = dict.fromkeys(task.classes) | dict(zip(names, found, strict=True))
        points.append({"wanted": wanted, "efficiencies": efficiencies})
    of_classes = shifts([each.probabilities.argmax(axis=1) == labels for each in both])
    # The mean over the classes, which count alike.
    accuracy = {
        key: float(np.mean([each[key] for each in of_classes])) for key in ("value", "shift")
    }
    accuracy["error"] = math.hypot(*(each["error"] for each in of_classes)) / len(of_classes)
    area = _difference(
        *(_area(labels, of, score, task) for of, score in zip(both, scores, strict=True))
    )
    return {"accuracy": _known(accuracy), "auc": _known(area), "working_points": points}


def _known(found: dict[str, float]) -> dict[str, float] | None:
    return None if math.isnan(found["shift"]) else found


def _share(weights: Floats, passing: NDArray[np.bool_]) -> tuple[float, Floats]:
    """A share, and what each event adds to it; not a number if the weights add up to 0 or less."""
    total = weights.sum() if WeightSums.of(weights).is_positive else np.nan
    share = float(weights @ passing / total)
    return share, weights * (passing - share) / total


def _area(
    labels: NDArray[np.int64], of: Varied, score: Floats, task: EvaluationTask
) -> tuple[float, Floats]:
    """Area under the ROC curve against all backgrounds, and what each event adds to it; as `_share`.

    Pairs of equal scores count half (DeLong, DeLong, Clarke-Pearson 1988, with weights).
    """
    sums, totals = (
        np.bincount(labels, of.weights, len(task.classes)),
        np.full(len(task.classes), np.nan),
    )
    if (sums[task.measured] > 0).all():
        totals[task.measured] = sums[task.measured]
    fractions = {**task.signal.fractions, **task.mixture.fractions}
    counts = np.array([fractions.get(label, 0.0) for label in range(len(task.classes))])
    portions = (counts / totals)[labels] * of.weights
    _, place = np.unique(np.where(of.is_selected, score, -np.inf), return_inverse=True)
    is_signal = np.isin(labels, list(task.signal.fractions))
    signal, background = (
        np.bincount(place[rows], portions[rows], place.max() + 1)
        for rows in (is_signal, ~is_signal)
    )
    # The share of the other kind that an event is on the right side of.
    below = np.cumsum(background) - background / 2
    above = signal.sum() - np.cumsum(signal) + signal / 2
    beaten = np.where(is_signal, below[place], above[place])
    means = np.bincount(labels, of.weights * beaten, len(task.classes)) / totals
    area = sum(fraction * means[label] for label, fraction in task.signal.fractions.items())
    return float(area), portions * (beaten - means[labels])


def _difference(before: tuple[float, Floats], after: tuple[float, Floats]) -> dict[str, float]:
    """A number after a variation, from the number and what each event adds to it before and after."""
    # Both are of the same events, so their common chance cancels.
    error = float(np.sqrt(np.square(after[1] - before[1]).sum()))
    return {"value": after[0], "shift": after[0] - before[0], "error": error}
