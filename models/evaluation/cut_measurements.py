"""Measures one evaluated model behind cuts on its score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from features.columns import hlf_names
from models.evaluation.bootstrap import Replicas
from models.evaluation.curves import efficiencies_json, efficiency_against
from models.evaluation.discriminant import ReplicatedScore, discriminant
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.significance import significance
from models.evaluation.working_points import (
    FEWEST_EVENTS,
    highest_measurable_efficiency,
    working_points,
)


def score_against(
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


def numbers_of_cuts(
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
    score = score_against(events, replicas, task, task.mixture.fractions, efficiencies)
    return _points(events, score, task)


def _points_at_background(
    events: ScoredEvents, replicas: Replicas, task: EvaluationTask
) -> list[dict[str, Any]]:
    """Measure the working points at given efficiencies of all backgrounds together."""
    scores = task.score(events.probabilities)
    efficiencies = np.array(task.background_points)
    background = task.mixture.fractions
    score = ReplicatedScore(
        replicas, scores, task.signal.fractions, efficiencies, background=background
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
        asimov = float(columns["asimov"][index])
        low = float(columns["low"][index])
        high = float(columns["high"][index])
        interval: dict[str, Any] = {"value": asimov, "low": low, "high": high}
        # Without background there is no value, or some replicas have no bound: `low` is then a
        # lower limit.
        if math.isnan(asimov) or math.isinf(high):
            interval["limit"] = "lower"
        point["significance"] = interval
    return points


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
    intervals = [numbers["asimov"], numbers["low"], numbers["high"]]
    is_finite = np.isfinite(intervals).all(axis=0)
    has_events = numbers["effective"] >= FEWEST_EVENTS
    is_measurable = is_finite & has_events
    columns = {name: column[is_measurable].tolist() for name, column in numbers.items()}
    best, best_is_at_end = None, False
    if is_measurable.any():
        significances = columns["asimov"]
        best = int(np.argmax(significances))
        tightest = significances[0]
        best_is_at_end = tightest >= columns["low"][best]
    return {
        "of": "expected events" if task.expected else "test events",
        "uncertainty": task.uncertainty,
        "best": best,
        "best_is_at_end": best_is_at_end,
        **columns,
    }


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
    threshold = measurable_points[0]["threshold"]
    passing = task.score(events.probabilities) >= threshold
    efficiencies: dict[str, Any] = {}
    for variable, edges in task.edges.items():
        values = events.hlf[:, hlf_names().index(variable)]
        by_class = {}
        for label, name in enumerate(task.classes):
            in_class = events.labels == label
            weights = events.weights[in_class]
            bins = efficiency_against(values[in_class], passing[in_class], weights, edges)
            by_class[name] = efficiencies_json(bins)
        edges_json = [float(edge) for edge in edges]
        efficiencies[variable] = {"edges": edges_json, "classes": by_class}
    return efficiencies
