"""Permutation importance: by hand, by the expected value, and against scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.inspection import permutation_importance as sklearn_importance

from models.evaluation.importance import permutation_importance

RNG = np.random.default_rng(1)
COLUMNS = RNG.normal(0, [1.0, 2.0, 3.0], (800, 3))
COEFFICIENTS = np.array([2.0, -1.0, 0.0])
TRUTH = COLUMNS @ COEFFICIENTS


def score(columns: np.ndarray) -> float:
    """Minus the mean squared error of the right linear model."""
    return -float(np.square(columns @ COEFFICIENTS - TRUTH).mean())


def test_the_drop_of_a_linear_model_is_twice_the_variance_of_its_term() -> None:
    found = permutation_importance(score, COLUMNS, repeats=40, generator=np.random.default_rng(2))
    # E (c x - c x')^2 = 2 c^2 var(x) for x' drawn from the sample itself.
    expected = 2 * COEFFICIENTS**2 * COLUMNS.var(axis=0)
    assert [each.value for each in found] == pytest.approx(expected.tolist(), rel=0.02)
    assert found[2] == (0.0, 0.0)


def test_it_is_that_of_scikit_learn_within_the_errors() -> None:
    ours = permutation_importance(score, COLUMNS, repeats=50, generator=np.random.default_rng(3))
    theirs = sklearn_importance(
        DummyClassifier(), COLUMNS, None, scoring=lambda _, columns, __: score(columns), n_repeats=50, random_state=1
    )
    spread = theirs.importances.std(axis=1, ddof=1)
    for feature in range(3):
        margin = 4 * spread[feature] * np.sqrt(2 / 50) + 1e-12
        assert ours[feature].value == pytest.approx(theirs.importances_mean[feature], abs=margin)
        assert ours[feature].error == pytest.approx(spread[feature], rel=0.5)


def test_value_and_error_are_mean_and_spread_of_the_drops() -> None:
    scores: list[float] = []

    def note(columns: np.ndarray) -> float:
        scores.append(score(columns))
        return scores[-1]

    found = permutation_importance(note, COLUMNS, repeats=4, generator=np.random.default_rng(4))
    drops = scores[0] - np.array(scores[1:]).reshape(3, 4)
    assert [each.value for each in found] == pytest.approx(drops.mean(axis=1).tolist())
    assert [each.error for each in found] == pytest.approx(drops.std(axis=1, ddof=1).tolist())


def test_one_feature_at_a_time_is_shuffled_among_the_events() -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def note(columns: np.ndarray) -> float:
        seen.append(columns.copy())
        return 0.0

    before = COLUMNS.copy()
    permutation_importance(note, COLUMNS, repeats=2, generator=np.random.default_rng(5))
    assert np.array_equal(COLUMNS, before)
    assert np.array_equal(seen[0], before)
    for index, columns in enumerate(seen[1:]):
        changed = (columns != before).any(axis=0)
        assert changed.tolist() == [feature == index // 2 for feature in range(3)]
        assert np.array_equal(np.sort(columns, axis=0), np.sort(before, axis=0))
    assert not np.array_equal(seen[1], seen[2])


def test_the_generator_decides() -> None:
    first, again, other = (
        permutation_importance(score, COLUMNS, generator=np.random.default_rng(seed)) for seed in (6, 6, 7)
    )
    assert first == again
    assert first[0] != other[0]


def test_one_repeat_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least 2 repeats"):
        permutation_importance(score, COLUMNS, repeats=1, generator=np.random.default_rng(8))


def test_every_feature_is_shuffled_five_times() -> None:
    seen: list[int] = []

    def score(columns: np.ndarray) -> float:
        seen.append(len(columns))
        return 0.0

    permutation_importance(score, np.arange(12.0).reshape(4, 3), generator=np.random.default_rng(1))
    assert seen == [4] * (1 + 5 * 3)
