"""Decides whether a model is good enough to be put in use, whatever is in use now."""

from __future__ import annotations

import numpy as np

from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.cut_measurements import points_at_signal
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.improvement import improvement
from models.evaluation.measurements import accuracy, measurable_events, replicas_of
from models.evaluation.rounding import with_error
from models.evaluation.scored_events import ScoredEvents


def shortfall(events: ScoredEvents, task: EvaluationTask, at_least: float | None) -> str:
    """Explain why a model on test events does not reach the floor; empty if it does.

    The floor `at_least` is an accuracy in which the classes count alike. Without it there are three
    criteria. Accuracy and mean cross-entropy must be better than those of the best constant answer,
    the same for every event, by more than their errors. At least one working point must have a
    threshold that enough events decide about.
    """
    events, task, _ = measurable_events(events, task)
    replicas = replicas_of(events, task)
    measured = accuracy(events, replicas)
    if at_least is None:
        # Each check returns an empty text if it is passed; the first failure is reported.
        return (
            _no_accuracy(measured, 1 / len(task.measured_labels))
            or _no_gain(events)
            or _no_working_point(events, replicas, task)
        )
    if measured.value >= at_least:
        return ""
    return f"its accuracy {_text(measured)} is below promote.at_least: {at_least:g}"


def _no_accuracy(measured: Estimate, best_constant: float) -> str:
    """Explain why the accuracy is no better than that of a constant answer; empty if it is."""
    if measured.value - best_constant > measured.error:
        return ""
    # An error that is NaN is no proof either.
    return (
        f"its accuracy {_text(measured)} is not above {best_constant:.3g}, "
        "that of the best constant answer, by more than its error"
    )


def _no_gain(events: ScoredEvents) -> str:
    """Explain why the cross-entropy is no better than that of a constant answer; empty if it is."""
    num_classes = len(np.unique(events.labels))
    # The classes count alike, so the best constant answer gives all of them the same probability.
    constant = events._replace(probabilities=np.full_like(events.probabilities, 1 / num_classes))
    gain = improvement(constant, events)
    if gain.value > gain.error:
        return ""
    return (
        "its mean cross-entropy is not below that of the best constant answer by more than the "
        f"error: the decrease is {_text(gain)}"
    )


def _no_working_point(events: ScoredEvents, replicas: Replicas, task: EvaluationTask) -> str:
    """Explain why no working point can be measured; empty if one can.

    A point is measurable if effectively 10 signal events fail its threshold; with fewer the
    threshold is mostly chance.
    """
    points = points_at_signal(events, replicas, task)
    if any(point["measurable"] for point in points):
        return ""
    efficiencies = ", ".join(f"{point['wanted']:g}" for point in points)
    # The lowest signal efficiency lets most signal events fail.
    num_failing = max(point["num_failing"] for point in points)
    return (
        f"none of its working points ({efficiencies}) can be measured: on {len(events.labels)} "
        f"test events effectively {num_failing:.1f} signal events fail where 10 are needed. "
        "Add files, or a lower signal efficiency to evaluate.working_points"
    )


def _text(number: Estimate) -> str:
    """Format a number with its error in ASCII, with +- between them."""
    return with_error(number.value, number.error, " +- ")
