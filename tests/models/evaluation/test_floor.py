"""The floor of a network: better than a constant answer, with a working point that can be
measured."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from features.columns import hlf_names
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.floor import shortfall
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS

CLASSES = ["background", "signal"]


def task(*working_points: float) -> EvaluationTask:
    efficiencies = working_points or (0.5,)
    return EvaluationTask(CLASSES, [1], efficiencies, None, NO_LABELS, 1)


def events(num_of_class: int, separation: float, *, certainty: float = 1.0) -> ScoredEvents:
    """Events whose log odds of the signal differ by some widths; a certainty of 1 is right."""
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1], num_of_class)
    samples = np.repeat(["b", "s"], num_of_class)
    weights = np.ones(2 * num_of_class)
    scores = rng.normal(separation * (labels - 0.5), 1.0)
    signal = expit(scores * separation * certainty)
    probabilities = np.stack([1 - signal, signal], axis=1)
    features = np.zeros((2 * num_of_class, len(hlf_names())), np.float32)
    return ScoredEvents(labels, probabilities, weights, features, samples)


def test_a_good_network_reaches_the_floor() -> None:
    reason = shortfall(events(300, 2.0), task(), None)

    assert reason == ""


def test_a_network_that_guesses_is_no_better_than_a_constant_answer() -> None:
    reason = shortfall(events(300, 0.0), task(), None)

    assert "that of the best constant answer, by more than its error" in reason


def test_a_network_that_is_far_too_sure_is_worse_than_a_constant_answer() -> None:
    far_too_sure = events(300, 1.0, certainty=20)

    reason = shortfall(far_too_sure, task(), None)

    assert reason.startswith("its mean cross-entropy is not below that of the best constant answer")


def test_a_network_without_a_measurable_working_point_is_below_the_floor() -> None:
    few = events(30, 2.0)

    reason = shortfall(few, task(0.9, 0.99), None)

    assert (
        "none of its working points (0.9, 0.99) can be measured: on 60 test events effectively 3.0 signal"
        in reason
    )
    assert shortfall(few, task(0.9, 0.5), None) == ""


@pytest.mark.parametrize(
    ("at_least", "message"), [(0.99, "is below promote.at_least: 0.99"), (0.6, ""), (0.0, "")]
)
def test_a_floor_that_is_set_is_the_only_one(at_least: float, message: str) -> None:
    # Of 20 events no working point can be measured.
    few = events(20, 2.0)

    reason = shortfall(few, task(0.99), at_least)

    assert message in reason
    assert bool(reason) == bool(message)
