"""Whether one model is better than another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import UndefinedMetricError
from models.evaluation.improvement import improvement


def made(seed: int, num_events: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_events)
    labels[:3] = (0, 1, 2)
    before, after = (rng.dirichlet((1, 1, 1), num_events) for _ in range(2))
    return labels, rng.uniform(0.5, 2, num_events), before, after


def test_it_is_the_difference_of_the_two_mean_losses() -> None:
    labels, weights, before, after = made(1)
    losses = []
    for scores in (before, after):
        by_class = [
            np.average(-np.log(scores[labels == index, index]), weights=weights[labels == index]) for index in range(3)
        ]
        losses.append(np.mean(by_class))
    assert improvement(labels, weights, before, after).value == pytest.approx(losses[0] - losses[1], rel=1e-9)


def test_the_error_is_the_spread_over_repetitions() -> None:
    # Of models that differ by noise, the mean over many samples is 0 and its spread is what each sample says.
    found = [improvement(*made(seed)) for seed in range(300)]
    spread = np.std([each.value for each in found])
    assert spread == pytest.approx(np.mean([each.error for each in found]), rel=0.15)


def test_the_error_is_smaller_where_models_agree_event_by_event() -> None:
    labels, weights, before, after = made(2)
    alike = 0.99 * before + 0.01 * after
    assert improvement(labels, weights, before, alike).error < improvement(labels, weights, before, after).error / 5


@given(seed=st.integers(0, 1000))
def test_exchanging_the_two_changes_the_sign_only(seed: int) -> None:
    labels, weights, before, after = made(seed, 30)
    there, back = improvement(labels, weights, before, after), improvement(labels, weights, after, before)
    assert there.value == pytest.approx(-back.value, abs=1e-12)
    assert there.error == pytest.approx(back.error)


def test_an_event_with_probability_0_does_not_decide() -> None:
    labels, weights = np.zeros(10, dtype=np.int64), np.ones(10)
    before = np.full((10, 2), 0.5)
    after = before.copy()
    after[0] = (0.0, 1.0)
    assert np.isfinite(improvement(labels, weights, before, after).value)


def test_what_is_not_finite_or_has_no_weight_is_refused() -> None:
    labels, weights, before, after = made(3)
    after[0, 0] = np.nan
    with pytest.raises(UndefinedMetricError, match="not finite"):
        improvement(labels, weights, before, after)
    with pytest.raises(UndefinedMetricError, match="add up to 0 or less"):
        improvement(labels, -weights, before, before)
