"""Metrics by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from plain_metrics import accuracy, area_under_curve
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.metrics import confusion_matrix as sklearn_confusion

from models.errors import UndefinedMetricError
from models.evaluation.metrics import confusion_matrix

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 3, 400)
SCORES = RNG.dirichlet([1, 1, 1], 400)
SCORES[np.arange(400), LABELS] += 0.3
SCORES /= SCORES.sum(axis=1, keepdims=True)
WEIGHTS = RNG.uniform(0.1, 3, 400)


def test_accuracy_and_confusion_are_those_of_scikit_learn() -> None:
    predicted = SCORES.argmax(axis=1)
    assert accuracy(LABELS, SCORES, WEIGHTS) == pytest.approx(accuracy_score(LABELS, predicted, sample_weight=WEIGHTS))
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
    area = area_under_curve(signal == LABELS, SCORES[:, signal], WEIGHTS)
    assert area == pytest.approx(roc_auc_score(signal == LABELS, SCORES[:, signal], sample_weight=WEIGHTS))


def test_auc_by_hand_with_a_tie() -> None:
    labels, scores = np.array([1, 1, 0, 0]), np.array([0.9, 0.5, 0.5, 0.1])
    assert area_under_curve(labels == 1, scores, np.ones(4)) == pytest.approx((1 + 1 + 0.5 + 1) / 4)


def test_negative_weights_give_the_share_of_rightly_ordered_pairs() -> None:
    rng = np.random.default_rng(8)
    labels, weights = rng.integers(0, 2, 200), rng.choice([1.0, 1.0, 1.0, -1.0], 200)
    scores = np.round(rng.normal(labels, 1.0), 1)
    signal, background = labels == 1, labels == 0
    pairs = np.sign(scores[signal][:, None] - scores[background]) / 2 + 0.5
    products = weights[signal][:, None] * weights[background]
    expected = (pairs * products).sum() / products.sum()
    assert area_under_curve(labels == 1, scores, weights) == pytest.approx(expected)


def test_weights_that_add_up_to_nothing_are_said() -> None:
    labels, weights = np.array([0, 0, 1, 1]), np.array([1.0, -1.0, 1.0, 1.0])
    with pytest.raises(UndefinedMetricError, match="weights add up to 0 or less"):
        area_under_curve(labels == 1, np.linspace(0, 1, 4), weights)
    with pytest.raises(UndefinedMetricError, match="all events together"):
        accuracy(labels, np.eye(2)[labels], np.array([1.0, -1.0, 1.0, -1.0]))


def test_one_class_alone_is_undefined_and_said_so() -> None:
    with pytest.raises(UndefinedMetricError, match="the background cannot be evaluated"):
        area_under_curve(np.ones(5, dtype=bool), np.linspace(0, 1, 5), np.ones(5))
    with pytest.raises(UndefinedMetricError, match="the signal cannot be evaluated"):
        area_under_curve(np.zeros(5, dtype=bool), np.linspace(0, 1, 5), np.ones(5))
    with pytest.raises(UndefinedMetricError, match=r"classes \[2\] cannot be evaluated"):
        confusion_matrix(np.array([0, 1]), np.eye(3)[:2], np.ones(2))
