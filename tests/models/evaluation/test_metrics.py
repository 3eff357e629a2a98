"""Metrics by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.metrics import confusion_matrix as sklearn_confusion

from models.errors import UndefinedMetricError
from models.evaluation.metrics import accuracy, auc_one_vs_rest, confusion_matrix, effective_size, roc_one_vs_rest

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 3, 400)
SCORES = RNG.dirichlet([1, 1, 1], 400)
SCORES[np.arange(400), LABELS] += 0.3
SCORES /= SCORES.sum(axis=1, keepdims=True)
WEIGHTS = RNG.uniform(0.1, 3, 400)


def test_accuracy_and_confusion_are_those_of_scikit_learn() -> None:
    predicted = SCORES.argmax(axis=1)
    assert accuracy(LABELS, SCORES, WEIGHTS).value == pytest.approx(
        accuracy_score(LABELS, predicted, sample_weight=WEIGHTS)
    )
    np.testing.assert_allclose(
        confusion_matrix(LABELS, SCORES, WEIGHTS),
        sklearn_confusion(LABELS, predicted, sample_weight=WEIGHTS, normalize="true"),
    )


def test_rows_of_the_confusion_matrix_are_the_true_classes() -> None:
    labels = np.array([0, 0, 0, 0, 1, 2])
    predicted = np.array([0, 0, 0, 1, 1, 0])
    matrix = confusion_matrix(labels, np.eye(3)[predicted], np.ones(6))
    assert matrix.tolist() == [[0.75, 0.25, 0], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("signal", [0, 1, 2])
def test_auc_is_that_of_scikit_learn(signal: int) -> None:
    area = auc_one_vs_rest(LABELS, SCORES[:, signal], WEIGHTS, signal=signal)
    assert area.value == pytest.approx(roc_auc_score(signal == LABELS, SCORES[:, signal], sample_weight=WEIGHTS))


def test_auc_by_hand_with_a_tie() -> None:
    labels, scores = np.array([1, 1, 0, 0]), np.array([0.9, 0.5, 0.5, 0.1])
    assert auc_one_vs_rest(labels, scores, np.ones(4), signal=1).value == pytest.approx((1 + 1 + 0.5 + 1) / 4)


def test_the_auc_error_is_the_spread_of_repeated_samples() -> None:
    rng = np.random.default_rng(11)
    areas, errors = [], []
    for _ in range(300):
        labels = np.repeat([0, 1], [120, 80])
        area = auc_one_vs_rest(labels, rng.normal(labels * 1.2, 1), np.ones(200), signal=1)
        areas.append(area.value)
        errors.append(area.error)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.15)


def test_the_accuracy_error_is_wilsons_and_grows_with_uneven_weights() -> None:
    labels, scores = np.array([0] * 100), np.eye(2)[np.repeat([0, 1], [80, 20])]
    low, high = proportion_interval(80, 100)
    assert accuracy(labels, scores, np.ones(100)).error == pytest.approx((high - low) / 2)
    assert accuracy(labels, scores, np.ones(100)).error == pytest.approx(np.sqrt(0.8 * 0.2 / 100), rel=0.02)
    uneven = np.tile([1.0, 9.0], 50)
    assert accuracy(labels, scores, uneven).error > accuracy(labels, scores, np.ones(100)).error
    assert effective_size(uneven) < 100


def proportion_interval(successes: int, trials: int) -> tuple[float, float]:
    result = binomtest(successes, trials).proportion_ci(confidence_level=0.682689492, method="wilson")
    return result.low, result.high


def test_an_accuracy_of_one_has_an_error() -> None:
    assert accuracy(np.zeros(50, dtype=int), np.eye(2)[[0] * 50], np.ones(50)).error > 0.005


def test_negative_weights_give_the_share_of_rightly_ordered_pairs() -> None:
    rng = np.random.default_rng(8)
    labels, weights = rng.integers(0, 2, 200), rng.choice([1.0, 1.0, 1.0, -1.0], 200)
    scores = np.round(rng.normal(labels, 1.0), 1)
    signal, background = labels == 1, labels == 0
    pairs = np.sign(scores[signal][:, None] - scores[background]) / 2 + 0.5
    products = weights[signal][:, None] * weights[background]
    expected = (pairs * products).sum() / products.sum()
    assert auc_one_vs_rest(labels, scores, weights, signal=1).value == pytest.approx(expected)


def test_weights_that_add_up_to_nothing_are_said() -> None:
    labels, weights = np.array([0, 0, 1, 1]), np.array([1.0, -1.0, 1.0, 1.0])
    with pytest.raises(UndefinedMetricError, match="weights add up to 0 or less"):
        auc_one_vs_rest(labels, np.linspace(0, 1, 4), weights, signal=1)
    with pytest.raises(UndefinedMetricError, match="all events together"):
        accuracy(labels, np.eye(2)[labels], np.array([1.0, -1.0, 1.0, -1.0]))


@given(st.integers(0, 2), st.floats(0.1, 100))
def test_roc_curves_rise_from_0_to_1_and_ignore_the_scale_of_weights(signal: int, scale: float) -> None:
    curve = roc_one_vs_rest(LABELS, SCORES[:, signal], WEIGHTS, signal=signal)
    for efficiency in curve:
        assert (efficiency[0], efficiency[-1]) == (0, pytest.approx(1))
        assert (np.diff(efficiency) >= 0).all()
    scaled = roc_one_vs_rest(LABELS, SCORES[:, signal], WEIGHTS * scale, signal=signal)
    np.testing.assert_allclose(curve.signal_efficiency, scaled.signal_efficiency)


def test_one_class_alone_is_undefined_and_said_so() -> None:
    with pytest.raises(UndefinedMetricError, match="classes other than 1 cannot be evaluated"):
        auc_one_vs_rest(np.ones(5, dtype=int), np.linspace(0, 1, 5), np.ones(5), signal=1)
    with pytest.raises(UndefinedMetricError, match="class 0 cannot be evaluated"):
        roc_one_vs_rest(np.ones(5, dtype=int), np.linspace(0, 1, 5), np.ones(5), signal=0)
    with pytest.raises(UndefinedMetricError, match=r"classes \[2\] cannot be evaluated"):
        confusion_matrix(np.array([0, 1]), np.eye(3)[:2], np.ones(2))
