"""Events with scores that tests of evaluations share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from features.columns import hlf_names
from models.evaluation.bootstrap import Estimate
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.measurements import measure, replicas_of
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS

CLASSES = ["QCD", "ttbar", "W+jets"]


def random_events(num_events: int, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes with ties of scores, and weights from `lightest` to 2.

    The kinematics of half of them lie on bin edges.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_events)
    labels[:3] = range(3)
    # An output is larger for the class of the event.
    is_class = np.eye(3)[labels]
    outputs = rng.exponential(1.0, (num_events, 3)) + 2 * is_class
    normalised = outputs / outputs.sum(axis=1, keepdims=True)
    # To one digit, so that there are ties.
    probabilities = np.round(normalised, 1)
    hlf = rng.normal(60, 60, (num_events, len(hlf_names()))).astype(np.float32)
    num_on_edges = num_events // 2
    for name, edges in KINEMATIC_EDGES.items():
        column = hlf_names().index(name)
        hlf[:num_on_edges, column] = rng.choice(edges, num_on_edges)
    weights = np.ones(num_events)
    if lightest != 1:
        weights = rng.choice([lightest, 0.5, 1.0, 2.0], num_events)
    return ScoredEvents(labels, probabilities, weights, hlf, np.array(CLASSES)[labels])


def events_with(labels: Any, probabilities: Any, weights: Any = 1.0) -> ScoredEvents:
    """Events without kinematics, with one sample for each class."""
    hlf = np.zeros((len(labels), len(hlf_names())), np.float32)
    weights = np.ones(len(labels)) * weights
    return ScoredEvents(labels, probabilities, weights, hlf, np.array(CLASSES)[labels])


def events_with_signal(labels: Any, signal: Any, weights: Any = 1.0) -> ScoredEvents:
    """Events with a probability of class 1; the other classes have equal parts of the rest."""
    num_backgrounds = labels.max()
    background = (1 - signal) / num_backgrounds
    probabilities = np.repeat(background[:, None], num_backgrounds + 1, axis=1)
    probabilities[:, 1] = signal
    return events_with(labels, probabilities, weights)


def example_task(**changes: Any) -> EvaluationTask:
    """Signal is ttbar, at an efficiency of 0.5."""
    task = EvaluationTask(CLASSES, [1], [0.5], None, NO_LABELS, 1)
    return task._replace(**changes)


def numbers_of(
    events: ScoredEvents, train: ScoredEvents | None = None, **changes: Any
) -> dict[str, Any]:
    """The numbers of a model for `example_task`; they survive strict JSON."""
    task = example_task(**changes)
    numbers = measure(events, train, replicas_of(events, task, num=200), task).numbers
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    return numbers


def certain_rates(rates: dict[str, float], **changes: Any) -> Rates:
    """Rates without errors of one sample for each class, named as the class."""
    labels = {name: label for label, name in enumerate(CLASSES)}
    of_samples = {name: Estimate(rate, 0.0) for name, rate in rates.items()}
    return Rates(of_samples, labels)._replace(**changes)


def values(intervals: dict[str, Any]) -> dict[str, float]:
    """The values of some intervals by name, without their ends."""
    return {name: interval["value"] for name, interval in intervals.items()}
