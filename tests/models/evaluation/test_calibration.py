"""Calibration by hand and against scikit-learn, and what a perfect model shows."""

from __future__ import annotations

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


def perfect(
    rng: np.random.Generator, sizes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[float]]:
    """Events with right probabilities for classes in equal parts, and their calibration errors."""
    labels = np.repeat(range(3), sizes)
    is_high = rng.random(len(labels)) < np.array([0.2, 0.8, 0.5])[labels]
    likelihood = np.where(is_high[:, None], [0.2, 0.8, 0.5], [0.8, 0.2, 0.5])
    scores = likelihood / likelihood.sum(axis=1, keepdims=True)
    weights = rng.choice([0.5, 1.0, 2.0], len(labels))
    shares = balanced(labels, weights, 3)
    return (
        labels,
        scores,
        weights,
        [
            calibration_error(calibration(labels == index, scores[:, index], shares))
            for index in range(3)
        ],
    )


def test_the_expected_error_is_the_mean_over_perfect_models_and_their_p_values_are_even() -> None:
    observed, expected, p_values = [], [], []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        labels, scores, weights, errors = perfect(rng, (90, 40, 60))
        results = expected_calibration_errors(labels, scores, weights, errors, generator=rng)
        observed.append(errors)
        expected.append([result["expected"] for result in results])
        p_values += [result["p_value"] for result in results]
    assert np.mean(expected, axis=0) == pytest.approx(np.mean(observed, axis=0), rel=0.2)
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.15)


def test_a_wrong_model_is_far_from_perfect() -> None:
    rng = np.random.default_rng(1)
    labels, scores, weights, _ = perfect(rng, (300, 300, 300))
    wrong = scores[:, [1, 0, 2]]
    shares = balanced(labels, weights, 3)
    errors = [
        calibration_error(calibration(labels == index, wrong[:, index], shares))
        for index in range(3)
    ]
    actual = expected_calibration_errors(labels, wrong, weights, errors, generator=rng)
    # Of 400 draws none is as bad; 0 would say more than they can.
    assert actual[0]["p_value"] == actual[1]["p_value"] == 1 / 401
    assert actual[0]["expected"] < errors[0] / 3


def test_calibration_is_that_of_scikit_learn_ties_on_edges_included() -> None:
    rng = np.random.default_rng(4)
    predicted = np.round(rng.uniform(0, 1, 500), 2)
    is_class = rng.uniform(0, 1, 500) < predicted**2
    bins = calibration(is_class, predicted, np.ones(500))
    observed, mean = calibration_curve(is_class, predicted, n_bins=10)
    np.testing.assert_allclose([bin_["observed"]["value"] for bin_ in bins], observed)
    np.testing.assert_allclose([bin_["mean_predicted"] for bin_ in bins], mean)
    assert [(bin_["low"], bin_["high"]) for bin_ in bins] == [
        (position / 10, (position + 1) / 10) for position in range(10)
    ]
    assert sum(bin_["num_events"] for bin_ in bins) == 500


def test_calibration_by_hand_with_weights() -> None:
    predicted = np.array([0.0, 0.1, 0.72, 0.78, 1.0, 0.55, 0.35])
    is_class = np.array([False, True, True, False, True, True, True])
    weights = np.array([1.0, 3.0, 2.0, 1.0, 1.0, 0.0, -1.0])
    bins = calibration(is_class, predicted, weights)
    # The bins of 0.55 and of 0.35 have no weight.
    assert [bin_["low"] for bin_ in bins] == [0.0, 0.7, 0.9]
    assert [bin_["weight"] for bin_ in bins] == [4, 3, 1]
    assert [bin_["num_events"] for bin_ in bins] == [2, 2, 1]
    assert [bin_["mean_predicted"] for bin_ in bins] == pytest.approx([0.075, 0.74, 1.0])
    assert [bin_["observed"]["value"] for bin_ in bins] == pytest.approx([0.75, 2 / 3, 1.0])
    assert (
        bins[1]["observed"] == efficiency(np.array([True, False]), np.array([2.0, 1.0]))._asdict()
    )
    assert calibration_error(bins) == pytest.approx((4 * 0.675 + 3 * (0.74 - 2 / 3)) / 8)
