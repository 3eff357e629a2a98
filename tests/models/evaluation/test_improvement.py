"""How much better one model is than another, and its error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Estimate
from models.evaluation.improvement import improvement
from models.evaluation.scored_events import ScoredEvents


class TwoModels(NamedTuple):
    """Events with their probabilities, (num_events, num_classes), by an old and a new model."""

    labels: np.ndarray
    weights: np.ndarray
    old: np.ndarray
    new: np.ndarray

    def improvement(self) -> Estimate:
        samples = np.full(len(self.labels), "a")
        hlf = np.zeros((len(self.labels), 1), np.float32)
        old = ScoredEvents(self.labels, self.old, self.weights, hlf, samples)
        new = old._replace(probabilities=self.new)
        return improvement(old, new)


def random_models(seed: int, num_events: int = 400) -> TwoModels:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_events)
    labels[:3] = (0, 1, 2)
    weights = rng.uniform(0.5, 2, num_events)
    old, new = rng.dirichlet((1, 1, 1), (2, num_events))
    return TwoModels(labels, weights, old, new)


def test_it_is_the_difference_of_the_two_mean_losses() -> None:
    models = random_models(1)

    def mean_loss(probabilities: np.ndarray) -> float:
        losses = []
        for label in range(3):
            in_class = models.labels == label
            event_losses = -np.log(probabilities[in_class, label])
            losses.append(np.average(event_losses, weights=models.weights[in_class]))
        return float(np.mean(losses))

    gain = models.improvement()

    expected = mean_loss(models.old) - mean_loss(models.new)
    assert gain.value == pytest.approx(expected, rel=1e-9)


def test_gains_that_differ_between_classes_are_no_error() -> None:
    # Every event of a class gains the same: nothing is uncertain.
    labels = np.repeat([0, 1], 50)
    old = np.full((100, 2), 0.25)
    new = old.copy()
    new[labels == 1] = 0.5
    models = TwoModels(labels, np.ones(100), old, new)

    gain = models.improvement()

    # The loss of one of the two classes falls by log(2).
    assert gain.value == pytest.approx(np.log(2) / 2)
    assert gain.error < 1e-12


def test_the_error_is_smaller_where_models_agree_event_by_event() -> None:
    models = random_models(2)
    nearly_old = 0.99 * models.old + 0.01 * models.new
    similar_models = models._replace(new=nearly_old)

    gain = models.improvement()
    gain_of_similar = similar_models.improvement()

    assert gain_of_similar.error < gain.error / 5


def test_an_event_with_probability_0_does_not_decide() -> None:
    old = np.full((10, 2), 0.5)
    new = old.copy()
    new[0] = (0.0, 1.0)

    labels = np.zeros(10, dtype=np.int64)
    models = TwoModels(labels, np.ones(10), old, new)

    gain = models.improvement()

    assert np.isfinite(gain.value)


def test_a_class_without_weight_is_refused() -> None:
    models = random_models(3)
    negative = models._replace(weights=-models.weights)

    with pytest.raises(UndefinedMetricError, match="add up to 0 or less"):
        negative.improvement()
