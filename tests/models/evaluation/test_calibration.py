"""Calibration by hand and against scikit-learn, and that of a perfect model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from models.evaluation.calibration import (
    calibration,
    calibration_error,
    expected_calibration_errors,
)
from models.evaluation.intervals import efficiency
from models.evaluation.scored_events import balanced


class Events(NamedTuple):
    """Events of three classes with probabilities for classes in equal parts."""

    labels: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray

    @property
    def errors(self) -> list[float]:
        """The calibration error of each class."""
        shares = balanced(self.labels, self.weights, 3)
        errors = []
        for label in range(3):
            is_class = self.labels == label
            bins = calibration(is_class, self.probabilities[:, label], shares)
            errors.append(calibration_error(bins))
        return errors


def perfect_events(rng: np.random.Generator, events_of_class: tuple[int, ...]) -> Events:
    """Events with right probabilities, from one feature with two values."""
    labels = np.repeat(range(3), events_of_class)
    share_high = np.array([0.2, 0.8, 0.5])
    is_high = rng.random(len(labels)) < share_high[labels]
    likelihood = np.where(is_high[:, None], share_high, 1 - share_high)
    probabilities = likelihood / likelihood.sum(axis=1, keepdims=True)
    weights = rng.choice([0.5, 1.0, 2.0], len(labels))
    return Events(labels, probabilities, weights)


def test_perfect_models_have_the_expected_error_and_uniform_p_values() -> None:
    observed = []
    expected = []
    p_values = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        events = perfect_events(rng, (90, 40, 60))
        errors_of_classes = expected_calibration_errors(*events, events.errors, generator=rng)
        observed.append(events.errors)
        expected.append([errors["expected"] for errors in errors_of_classes])
        p_values += [errors["p_value"] for errors in errors_of_classes]

    mean_observed = np.mean(observed, axis=0)
    mean_expected = np.mean(expected, axis=0)
    assert mean_expected == pytest.approx(mean_observed, rel=0.2)
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.15)


def test_a_wrong_model_is_far_from_perfect() -> None:
    rng = np.random.default_rng(1)
    events = perfect_events(rng, (300, 300, 300))
    exchanged = events.probabilities[:, [1, 0, 2]]
    wrong = events._replace(probabilities=exchanged)

    first, second, _ = expected_calibration_errors(*wrong, wrong.errors, generator=rng)

    # Of 400 draws none is as bad; 0 would claim more than they can show.
    assert first["p_value"] == second["p_value"] == 1 / 401
    assert first["expected"] < wrong.errors[0] / 3


def field_of_bins(bins: list[dict[str, Any]], name: str) -> list[float]:
    return [bin_[name] for bin_ in bins]


def observed_shares(bins: list[dict[str, Any]]) -> list[float]:
    return [bin_["observed"]["value"] for bin_ in bins]


def test_calibration_is_that_of_scikit_learn_with_ties_on_edges() -> None:
    rng = np.random.default_rng(4)
    predicted = np.round(rng.uniform(0, 1, 500), 2)
    is_class = rng.uniform(0, 1, 500) < predicted**2

    bins = calibration(is_class, predicted, np.ones(500))

    observed, mean_predicted = calibration_curve(is_class, predicted, n_bins=10)
    np.testing.assert_allclose(observed_shares(bins), observed)
    np.testing.assert_allclose(field_of_bins(bins, "mean_predicted"), mean_predicted)
    edges = np.arange(11) / 10
    assert field_of_bins(bins, "low") == edges[:-1].tolist()
    assert field_of_bins(bins, "high") == edges[1:].tolist()
    assert sum(field_of_bins(bins, "num_events")) == 500


def test_calibration_by_hand_with_weights() -> None:
    predicted = np.array([0.0, 0.1, 0.72, 0.78, 1.0, 0.55, 0.35])
    is_class = np.array([False, True, True, False, True, True, True])
    weights = np.array([1.0, 3.0, 2.0, 1.0, 1.0, 0.0, -1.0])

    bins = calibration(is_class, predicted, weights)

    # The bins of 0.55 and of 0.35 have no weight.
    assert field_of_bins(bins, "low") == [0.0, 0.7, 0.9]
    assert field_of_bins(bins, "weight") == [4, 3, 1]
    assert field_of_bins(bins, "num_events") == [2, 2, 1]
    # 3 of 4 at 0.1, and 2 of 3 at 0.72 and 1 at 0.78.
    assert field_of_bins(bins, "mean_predicted") == pytest.approx([0.075, 0.74, 1.0])
    assert observed_shares(bins) == pytest.approx([0.75, 2 / 3, 1.0])
    one_of_two = efficiency(np.array([True, False]), np.array([2.0, 1.0]))
    assert bins[1]["observed"] == one_of_two._asdict()
    # The differences of observed and predicted, weighted: 0.75 - 0.075 = 0.675 in the first bin.
    weighted_differences = 4 * 0.675 + 3 * (0.74 - 2 / 3)
    assert calibration_error(bins) == pytest.approx(weighted_differences / 8)
