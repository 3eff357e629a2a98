"""Significances against calculations of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from models.evaluation.bootstrap import Replicas
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.significance import asimov_significance, significance


def profiled_significance(signal: float, background: float, error: float) -> float:
    """The root of q0 of the Asimov data: a count, and a second one that measures the background.

    `error` is the absolute error of the background.
    """
    ratio = background / error**2
    count, control_count = signal + background, ratio * background

    def negative_log_likelihood(log_background: np.ndarray) -> float:
        b = math.exp(log_background[0])
        control = ratio * b - control_count * math.log(ratio * b)
        return b - count * math.log(b) + control

    profiled = minimize(
        negative_log_likelihood,
        [math.log(background)],
        method="Nelder-Mead",
        options={"xatol": 1e-12, "fatol": 1e-13},
    )
    best = count - count * math.log(count) + control_count - control_count * math.log(control_count)
    return math.sqrt(2 * (profiled.fun - best))


def score_with_cuts(
    labels: np.ndarray, scores: np.ndarray, shares: list[float], weights: np.ndarray | None = None
) -> ReplicatedScore:
    """A score of a sample for each class, with cuts at shares of class 1."""
    if weights is None:
        weights = np.ones(len(labels))
    replicas = Replicas(labels, labels.astype(str), weights, seed=1, num=200)
    return ReplicatedScore(replicas, scores, {1: 1.0}, np.array(shares))


@pytest.mark.parametrize(
    ("signal", "background", "uncertainty"),
    [(5, 3, 0.5), (10, 100, 0.1), (30, 50, 0.3), (0.5, 400, 0.05), (80, 2, 1.0)],
)
def test_the_asimov_significance_is_that_of_the_profiled_likelihood(
    signal: float, background: float, uncertainty: float
) -> None:
    expected = profiled_significance(signal, background, uncertainty * background)

    asimov = asimov_significance(np.array(signal), np.array(background), uncertainty)

    assert float(asimov) == pytest.approx(expected, rel=1e-4)


def test_a_tiny_uncertainty_changes_nothing() -> None:
    signal, background = np.array([3.0, 40.0]), np.array([50.0, 7.0])

    certain = asimov_significance(signal, background, 0.0)

    assert asimov_significance(signal, background, 1e-9) == pytest.approx(certain, rel=1e-6)


@pytest.mark.parametrize("uncertainty", [0.0, 0.1])
def test_limits_of_the_asimov_significance(uncertainty: float) -> None:
    many = np.array(1e6)

    few_on_many = asimov_significance(np.array(1.0), many, uncertainty)

    assert float(few_on_many) == pytest.approx(1 / math.hypot(1e3, 1e6 * uncertainty), rel=1e-3)
    # Signed weights may add up to less than nothing.
    assert asimov_significance(np.array(-3.0), many, uncertainty) == 0


@pytest.mark.parametrize(("num_signal", "num_background"), [(300, 2000), (2000, 300)])
def test_the_band_covers_the_truth_at_its_cut(num_signal: int, num_background: int) -> None:
    # If the cut moved in the replicas, the band would cover up to 97 %.
    rng, num_trials, shares = np.random.default_rng(5), 120, np.array([0.5, 0.7, 0.9])
    labels = np.repeat([0, 1], [num_background, num_signal])
    num_below, num_above = np.zeros((2, len(shares)))
    for seed in range(num_trials):
        # Below x are x**2 of the signal and 1 - (1 - x)**2 of the background.
        background_scores = 1 - np.sqrt(rng.random(num_background))
        signal_scores = np.sqrt(rng.random(num_signal))
        scores = np.concatenate([background_scores, signal_scores])
        replicas = Replicas(labels, labels.astype(str), np.ones(len(labels)), seed=seed, num=200)
        score = ReplicatedScore(replicas, scores, {1: 1.0}, shares)
        numbers = significance(score, {0: 1000.0, 1: 50.0}, 0.1)
        cut = numbers["threshold"]
        truth = asimov_significance(50 * (1 - cut**2), 1000 * (1 - cut) ** 2, 0.1)
        num_below += truth < numbers["low"]
        num_above += truth > numbers["high"]

    assert (np.abs(num_below / num_trials - 0.16) < 0.1).all()
    assert (np.abs(num_above / num_trials - 0.16) < 0.1).all()
    assert (np.abs((num_below + num_above) / num_trials - 0.32) < 0.12).all()


def test_a_background_that_is_cut_entirely_counts_with_one_event_in_the_errors() -> None:
    # Of 31 and 20 background events none and 10 pass, with rates of 10 and 0.6.
    labels = np.repeat([0, 1, 2], [31, 100, 20])
    scores = np.where(labels == 2, np.arange(len(labels)) % 2, labels) * 1.0

    numbers = significance(score_with_cuts(labels, scores, [0.9]), {0: 10.0, 1: 50.0, 2: 0.6}, 0.1)

    assert numbers["background"] == pytest.approx([0.3])
    assert numbers["simple"] == pytest.approx([50 / math.sqrt(0.3)])
    assert numbers["effective"] == pytest.approx([0.3**2 / (10 * 0.03**2 + (10 / 31) ** 2)])


def test_without_any_background_there_is_only_a_lower_bound() -> None:
    labels = np.repeat([0, 1], [31, 100])

    numbers = significance(score_with_cuts(labels, labels * 1.0, [0.9]), {0: 1000.0, 1: 50.0}, 0.1)

    one_event = asimov_significance(np.array(50.0), np.array(1000 / 31), 0.1)
    assert 0.5 < numbers["low"][0] < one_event
    assert np.isnan([numbers["asimov"][0], numbers["simple"][0]]).all()
    assert numbers["high"] == [math.inf]
    assert numbers["effective"] == [0.0]


@pytest.mark.parametrize(("num_positive", "has_bound"), [(100, True), (46, False)])
def test_replicas_without_background_have_an_infinite_significance(
    num_positive: int, has_bound: bool
) -> None:
    """Signed weights leave 1 % or 40 % of the replicas without background."""
    weights = np.concatenate([np.ones(num_positive), np.full(40, -1.0), np.ones(300 + 100)])
    labels = np.repeat([0, 1], [num_positive + 40 + 300, 100])
    scores = np.concatenate([np.ones(num_positive + 40), np.zeros(300), np.ones(100)])

    score = score_with_cuts(labels, scores, [0.9], weights)
    numbers = significance(score, {0: 1000.0, 1: 50.0}, 0.1)

    low, value, high = numbers["low"][0], numbers["asimov"][0], numbers["high"][0]
    assert 0 < low < value < high
    assert math.isfinite(high) is has_bound
