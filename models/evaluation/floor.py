"""What a model must reach at least to be put in use, whatever is in use now."""

from __future__ import annotations

import numpy as np

from models.evaluation.bootstrap import Replicas
from models.evaluation.improvement import improvement
from models.evaluation.measurements import (
    EvaluationTask,
    accuracy,
    measurable,
    points_at_signal,
    replicas_of,
)
from models.evaluation.rounding import with_error
from models.evaluation.scored_events import ScoredEvents


def shortfall(events: ScoredEvents, task: EvaluationTask, at_least: float | None) -> str:
    """Why a model on test events does not reach the floor, in words; empty if it does.

    The floor is an accuracy in which the classes count alike. Without one the model must be better than the best
    constant answer by more than its error, in accuracy and in mean cross-entropy, and have a measurable working point.
    """
    events, task, _ = measurable(events, task)
    replicas = replicas_of(events, task)
    measured = accuracy(events, replicas)
    text = with_error(measured.value, measured.error, " +- ")
    if at_least is not None:
        return (
            ""
            if measured.value >= at_least
            else f"its accuracy {text} is below promote.at_least: {at_least:g}"
        )
    best_constant = 1 / len(task.measured)
    # An error that is not a number is no proof either.
    if not measured.value - best_constant > measured.error:
        return (
            f"its accuracy {text} is not above {best_constant:.3g}, that of the best constant answer, by more than its "
            f"error"
        )
    return _no_gain(events) or _no_working_point(events, replicas, task)


def _no_gain(events: ScoredEvents) -> str:
    """Why the cross-entropy is no better than that of a constant answer."""
    num_classes = len(np.unique(events.labels))
    # The classes count alike, so the best constant answer gives all of them the same probability.
    constant = events._replace(probabilities=np.full_like(events.probabilities, 1 / num_classes))
    gain = improvement(constant, events)
    if gain.value > gain.error:
        return ""
    return (
        f"its mean cross-entropy is not below that of the best constant answer by more than the error: the decrease is "
        f"{with_error(gain.value, gain.error, ' +- ')}"
    )


def _no_working_point(events: ScoredEvents, replicas: Replicas, task: EvaluationTask) -> str:
    points = points_at_signal(events, replicas, task)
    if any(point["measurable"] for point in points):
        return ""
    wanted = ", ".join(f"{point['wanted']:g}" for point in points)
    failing = max(point["num_failing"] for point in points)
    return (
        f"none of its working points ({wanted}) can be measured: on {len(events.labels)} test events effectively "
        f"{failing:.1f} signal events fail where 10 are needed. Add files, or a lower signal efficiency to "
        f"evaluate.working_points"
    )
