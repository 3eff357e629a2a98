"""Whether one model is better than another."""

from __future__ import annotations

import numpy as np
import pytest

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Estimate
from models.evaluation.improvement import improvement
from models.evaluation.scored_events import ScoredEvents


def compared(
    labels: np.ndarray, weights: np.ndarray, state_before: np.ndarray, state_after: np.ndarray
) -> Estimate:
    names, hlf = np.full(len(labels), "a"), np.zeros((len(labels), 1), np.float32)
    old, new = (
        ScoredEvents(labels, probabilities, weights, hlf, names)
        for probabilities in (state_before, state_after)
    )
    return improvement(old, new)


def made(seed: int, num_events: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_events)
    labels[:3] = (0, 1, 2)
    state_before, state_after = (rng.dirichlet((1, 1, 1), num_events) for _ in range(2))
    return labels, rng.uniform(0.5, 2, num_events), state_before, state_after


def test_it_is_the_difference_of_the_two_mean_losses() -> None:
    labels, weights, state_before, state_after = made(1)
    losses = []
    for scores in (state_before, state_after):
        by_class = [
            np.average(-np.log(scores[labels == index, index]), weights=weights[labels == index])
            for index in range(3)
        ]
        losses.append(np.mean(by_class))
    assert compared(labels, weights, state_before, state_after).value == pytest.approx(
        losses[0] - losses[1], rel=1e-9
    )


def test_gains_that_differ_between_classes_are_no_error() -> None:
    # Every event of a class gains the same: nothing is uncertain.
    labels = np.repeat([0, 1], 50)
    full_before, where_after = (
        np.full((100, 2), 0.25),
        np.where(labels[:, None] == 0, [0.25, 0.25], [0.5, 0.5]),
    )
    actual = compared(labels, np.ones(100), full_before, where_after)
    assert actual.value == pytest.approx(np.log(2) / 2)
    assert actual.error < 1e-12


def test_the_error_is_smaller_where_models_agree_event_by_event() -> None:
    labels, weights, state_before, state_after = made(2)
    alike = 0.99 * state_before + 0.01 * state_after
    assert (
        compared(labels, weights, state_before, alike).error
        < compared(labels, weights, state_before, state_after).error / 5
    )


def test_an_event_with_probability_0_does_not_decide() -> None:
    labels, weights = np.zeros(10, dtype=np.int64), np.ones(10)
    full_before = np.full((10, 2), 0.5)
    copy_after = full_before.copy()
    copy_after[0] = (0.0, 1.0)
    assert np.isfinite(compared(labels, weights, full_before, copy_after).value)


def test_a_class_without_weight_is_refused() -> None:
    labels, weights, state_before, _ = made(3)
    with pytest.raises(UndefinedMetricError, match="add up to 0 or less"):
        compared(labels, -weights, state_before, state_before)
