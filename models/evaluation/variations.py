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

from models.evaluation.discriminant import discriminant
from models.evaluation.efficiencies import Floats
from models.evaluation.measurements import EvaluationTask
from models.evaluation.metrics import within_classes
from models.evaluation.scored_events import ScoredEvents


class Varied(NamedTuple):
    """The test events with other weights or other scores."""

    weights: Floats
    """(num_events,) physics weights within a class."""
    probabilities: Floats
    """(num_events, num_classes)."""
    is_selected: NDArray[np.bool_]
    """(num_events,) whether the event still passes the selection; if not, it passes no threshold."""


def with_weights(events: ScoredEvents, weights: Floats) -> Varied:
    """The events with other weights, of any scale."""
    scaled = within_classes(events.labels, weights)
    return Varied(scaled, events.probabilities, np.ones(len(events.labels), dtype=np.bool_))


def with_scores(events: ScoredEvents, probabilities: Floats, is_selected: NDArray[np.bool_]) -> Varied:
    """The events with other scores."""
    return Varied(events.weights, probabilities, is_selected)


def variations(
    events: ScoredEvents, varied: Mapping[str, Varied], task: EvaluationTask, thresholds: Sequence[float]
) -> dict[str, Any]:
    """Accuracy, and efficiency of each class at each working point, of each variation, and their shifts.

    Args:
        events: The events as they are.
        varied: The variations by name.
        task: Classes, signal, mixture and working points.
        thresholds: Threshold of each working point.

    Returns:
        By variation: `accuracy` and, at each of `working_points`, `efficiencies` by class, each with `value`, `shift`
        from the events as they are, and `error` of the shift. Without weight in a class, it has no efficiency (null).
    """
    nominal = with_weights(events, events.weights)
    return {name: _one(events.labels, (nominal, each), task, thresholds) for name, each in varied.items()}


def envelope(varied: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far several variations spread, in the form of one of them.

    Args:
        varied: Values of the result of `variations`, at least one.

    Returns:
        As for a variation, each number with the largest shift `down` and `up`, 0 if there is none, and the root mean
        square `rms` of all; null if one of the variations has no such number.
    """
    points = [
        {
            "wanted": same[0]["wanted"],
            "efficiencies": {
                name: _extent([point["efficiencies"][name] for point in same]) for name in same[0]["efficiencies"]
            },
        }
        for same in zip(*(each["working_points"] for each in varied), strict=True)
    ]
    return {"accuracy": _extent([each["accuracy"] for each in varied]), "working_points": points}


def _extent(found: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    shifts = [each["shift"] for each in found if each is not None]
    if len(shifts) < len(found):
        return None
    return {"down": min(0.0, *shifts), "up": max(0.0, *shifts), "rms": math.hypot(*shifts) / len(shifts) ** 0.5}


def _one(
    labels: NDArray[np.int64], both: tuple[Varied, Varied], task: EvaluationTask, thresholds: Sequence[float]
) -> dict[str, Any]:
    def shifts(passing: Sequence[NDArray[np.bool_]]) -> list[dict[str, float] | None]:
        """Of the share of each class that passes before and after."""
        kept = [(each & of.is_selected).astype(np.float64) for each, of in zip(passing, both, strict=True)]
        chosen = (labels == label for label in range(len(task.classes)))
        return [
            _shift([(of.weights[rows], each[rows]) for each, of in zip(kept, both, strict=True)]) for rows in chosen
        ]

    scores = [discriminant(each.probabilities, signal=task.signal, fractions=task.mixture.fractions) for each in both]
    points = []
    for wanted, threshold in zip(task.working_points, thresholds, strict=True):
        found = shifts([score >= threshold for score in scores])
        points.append({"wanted": wanted, "efficiencies": dict(zip(task.classes, found, strict=True))})
    accuracies = shifts([each.probabilities.argmax(axis=1) == labels for each in both])
    return {"accuracy": _mean(accuracies), "working_points": points}


def _shift(both: Sequence[tuple[Floats, Floats]]) -> dict[str, float] | None:
    """A share after a variation, from weights and passing before and after; None if weights add up to 0 or less."""
    if not all(weights.sum() > 0 for weights, _ in both):
        return None
    before, after = (float(np.average(kept, weights=weights)) for weights, kept in both)
    # What each event adds to a share; both are of the same events, so their common chance cancels.
    old, new = (
        weights * (kept - share) / weights.sum() for (weights, kept), share in zip(both, (before, after), strict=True)
    )
    return {"value": after, "shift": after - before, "error": float(np.sqrt(np.square(new - old).sum()))}


def _mean(found: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    """The mean over the classes, which count alike."""
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    value, shift = (float(np.mean([each[key] for each in known])) for key in ("value", "shift"))
    return {"value": value, "shift": shift, "error": math.hypot(*(each["error"] for each in known)) / len(known)}
