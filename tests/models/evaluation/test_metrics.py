"""Metrics by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import confusion_matrix as sklearn_confusion

from models.evaluation.metrics import confusion_matrix

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 3, 400)
SCORES = RNG.dirichlet([1, 1, 1], 400)
SCORES[np.arange(400), LABELS] += 0.3
SCORES /= SCORES.sum(axis=1, keepdims=True)
WEIGHTS = RNG.uniform(0.1, 3, 400)


def test_the_confusion_matrix_is_that_of_scikit_learn() -> None:
    predicted = SCORES.argmax(axis=1)
    np.testing.assert_allclose(
        confusion_matrix(LABELS, SCORES, WEIGHTS),
        sklearn_confusion(LABELS, predicted, sample_weight=WEIGHTS, normalize="true"),
    )
