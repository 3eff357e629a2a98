"""What other weights of the generator and shifted inputs change in the numbers of a model.

Thresholds stay those of the working points: a trigger is set once. Events, and so most of their chance, are common; the
error of a shift is that of the difference, from each event's share in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.evaluation.bootstrap import Estimate
from models.evaluation.discriminant import discriminant
from models.evaluation.measurements import Question
from models.evaluation.metrics import within_classes
from models.evaluation.scored_events import ScoredEvents

Floats = NDArray[np.float64]


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
    events: ScoredEvents, varied: Mapping[str, Varied], question: Question, thresholds: Sequence[float]
) -> dict[str, Any]:
    """Accuracy, and efficiency of each class at each working point, of each variation, and their shifts.

    Args:
        events: The events as they are.
        varied: The variations by name.
        question: Classes, signal, mixture and working points.
        thresholds: Threshold of each working point.

    Returns:
        By variation: `accuracy` and, at each of `working_points`, `efficiencies` by class, each with `value`, `shift`
        from the events as they are, and `error` of the shift. Without weight in a class, it has no efficiency (null).
    """
    nominal = Varied(events.weights, events.probabilities, np.ones(len(events.labels), dtype=np.bool_))
    return {name: _one(events.labels, nominal, each, question, thresholds) for name, each in varied.items()}


def _one(
    labels: NDArray[np.int64], nominal: Varied, varied: Varied, question: Question, thresholds: Sequence[float]
) -> dict[str, Any]:
    classes = range(len(question.classes))

    def right(each: Varied) -> Floats:
        is_right: NDArray[np.bool_] = each.probabilities.argmax(axis=1) == labels
        return (is_right & each.is_selected).astype(np.float64)

    def above(each: Varied, threshold: float) -> Floats:
        score = discriminant(each.probabilities, signal=question.signal, fractions=question.mixture.fractions)
        return ((score >= threshold) & each.is_selected).astype(np.float64)

    # Classes count alike in the accuracy.
    accuracies = [_shift(labels == label, right(nominal), right(varied), nominal, varied) for label in classes]
    return {
        "accuracy": _mean(accuracies),
        "working_points": [
            {
                "wanted": wanted,
                "efficiencies": {
                    question.classes[label]: _json(
                        _shift(labels == label, above(nominal, threshold), above(varied, threshold), nominal, varied)
                    )
                    for label in classes
                },
            }
            for wanted, threshold in zip(question.working_points, thresholds, strict=True)
        ],
    }


def _shift(
    of_class: NDArray[np.bool_], before: Floats, after: Floats, nominal: Varied, varied: Varied
) -> tuple[float, Estimate] | None:
    """A share of a class after a variation, and its shift; None if the weights add up to 0 or less."""
    old, new = nominal.weights[of_class], varied.weights[of_class]
    if not (old.sum() > 0 and new.sum() > 0):
        return None
    passed_old, passed_new = before[of_class], after[of_class]
    value, reference = (float(np.average(p, weights=w)) for p, w in ((passed_new, new), (passed_old, old)))
    # What each event adds to the difference of the two shares.
    influence = new * (passed_new - value) / new.sum() - old * (passed_old - reference) / old.sum()
    return value, Estimate(value - reference, float(np.sqrt(np.square(influence).sum())))


def _mean(found: Sequence[tuple[float, Estimate] | None]) -> dict[str, float] | None:
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    error = float(np.sqrt(sum(shift.error**2 for _, shift in known))) / len(known)
    value, shift = (float(np.mean(each)) for each in zip(*((v, s.value) for v, s in known), strict=True))
    return {"value": value, "shift": shift, "error": error}


def _json(found: tuple[float, Estimate] | None) -> dict[str, float] | None:
    return None if found is None else {"value": found[0], "shift": found[1].value, "error": found[1].error}
