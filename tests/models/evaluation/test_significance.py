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
    count = signal + background
    control_count = ratio * background

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
    best_of_count = count - count * math.log(count)
    best_of_control = control_count - control_count * math.log(control_count)
    likelihood_ratio = profiled.fun - (best_of_count + best_of_control)
    return math.sqrt(2 * likelihood_ratio)


def score_with_cuts(
    labels: np.ndarray, scores: np.ndarray, shares: list[float], weights: np.ndarray | None = None
) -> ReplicatedScore:
    """A score of a sample for each class, with cuts at shares of class 1."""
    if weights is None:
        weights = np.ones(len(labels))
    samples = labels.astype(str)
    replicas = Replicas(labels, samples, weights, seed=1, num=200)
    return ReplicatedScore(replicas, scores, {1: 1.0}, np.array(shares))


@pytest.mark.parametrize(
    ("signal", "background", "uncertainty"),
    [(5, 3, 0.5), (10, 100, 0.1), (30, 50, 0.3), (0.5, 400, 0.05), (80, 2, 1.0)],
)
def test_the_asimov_significance_is_that_of_the_profiled_likelihood(
    signal: float, background: float, uncertainty: float
) -> None:
    error = uncertainty * background
    expected = profiled_significance(signal, background, error)

    asimov = asimov_significance(np.array(signal), np.array(background), uncertainty)

    assert float(asimov) == pytest.approx(expected, rel=1e-4)


def test_a_tiny_uncertainty_changes_nothing() -> None:
    signal = np.array([3.0, 40.0])
    background = np.array([50.0, 7.0])

    certain = asimov_significance(signal, background, 0.0)
    nearly_certain = asimov_significance(signal, background, 1e-9)

    assert nearly_certain == pytest.approx(certain, rel=1e-6)


@pytest.mark.parametrize("uncertainty", [0.0, 0.1])
def test_limits_of_the_asimov_significance(uncertainty: float) -> None:
    one, many = np.array(1.0), np.array(1e6)

    one_on_many = asimov_significance(one, many, uncertainty)

    # The errors of the background: of its count, and its uncertainty.
    expected = 1 / math.hypot(1e3, 1e6 * uncertainty)
    assert float(one_on_many) == pytest.approx(expected, rel=1e-3)
    # Signed weights may add up to less than nothing.
    assert asimov_significance(np.array(-3.0), many, uncertainty) == 0


@pytest.mark.parametrize(("num_signal", "num_background"), [(300, 2000), (2000, 300)])
def test_the_band_covers_the_truth_at_its_cut(num_signal: int, num_background: int) -> None:
    # If the cut moved in the replicas, the band would cover up to 97 %.
    rng = np.random.default_rng(5)
    num_trials = 120
    shares = np.array([0.5, 0.7, 0.9])
    labels = np.repeat([0, 1], [num_background, num_signal])
    weights = np.ones(len(labels))
    num_below = np.zeros(3)
    num_above = np.zeros(3)
    for seed in range(num_trials):
        # Below x are x**2 of the signal and 1 - (1 - x)**2 of the background.
        background_scores = 1 - np.sqrt(rng.random(num_background))
        signal_scores = np.sqrt(rng.random(num_signal))
        scores = np.concatenate([background_scores, signal_scores])
        replicas = Replicas(labels, labels.astype(str), weights, seed=seed, num=200)
        score = ReplicatedScore(replicas, scores, {1: 1.0}, shares)
        numbers = significance(score, {0: 1000.0, 1: 50.0}, 0.1)

        cut = numbers["threshold"]
        true_signal = 50 * (1 - cut**2)
        true_background = 1000 * (1 - cut) ** 2
        truth = asimov_significance(true_signal, true_background, 0.1)
        num_below += truth < numbers["low"]
        num_above += truth > numbers["high"]

    # A band of one sigma leaves out 16 % on each side.
    share_below = num_below / num_trials
    share_above = num_above / num_trials
    assert share_below == pytest.approx(0.16, abs=0.1)
    assert share_above == pytest.approx(0.16, abs=0.1)
    assert share_below + share_above == pytest.approx(0.32, abs=0.12)


def test_a_background_that_is_cut_entirely_counts_with_one_event_in_the_errors() -> None:
    # Of 31 and 20 background events none and 10 pass, with rates of 10 and 0.6.
    labels = np.repeat([0, 1, 2], [31, 100, 20])
    scores = np.repeat([0.0, 1.0, 0.0, 1.0], [31, 100, 10, 10])
    score = score_with_cuts(labels, scores, [0.9])
    rates = {0: 10.0, 1: 50.0, 2: 0.6}

    numbers = significance(score, rates, 0.1)

    assert numbers["background"] == pytest.approx([0.3])
    assert numbers["simple"] == pytest.approx([50 / math.sqrt(0.3)])
    # Ten events count 0.03 each; one event of the other class would count 10 / 31.
    squared_error = 10 * 0.03**2 + (10 / 31) ** 2
    assert numbers["effective"] == pytest.approx([0.3**2 / squared_error])


def test_without_any_background_there_is_only_a_lower_bound() -> None:
    labels = np.repeat([0, 1], [31, 100])
    scores = np.repeat([0.0, 1.0], [31, 100])
    score = score_with_cuts(labels, scores, [0.9])

    numbers = significance(score, {0: 1000.0, 1: 50.0}, 0.1)

    one_of_31_events = np.array(1000 / 31)
    on_one_event = asimov_significance(np.array(50.0), one_of_31_events, 0.1)
    assert 0.5 < numbers["low"][0] < on_one_event
    assert np.isnan(numbers["asimov"][0])
    assert np.isnan(numbers["simple"][0])
    assert numbers["high"] == [math.inf]
    assert numbers["effective"] == [0.0]


@pytest.mark.parametrize(("num_positive", "has_bound"), [(100, True), (46, False)])
def test_replicas_without_background_have_an_infinite_significance(
    num_positive: int, has_bound: bool
) -> None:
    """Signed weights leave 1 % or 40 % of the replicas without background."""
    # Background above the cut with weights of both signs, background below it, and signal.
    num_events = [num_positive, 40, 300, 100]
    labels = np.repeat([0, 0, 0, 1], num_events)
    weights = np.repeat([1.0, -1.0, 1.0, 1.0], num_events)
    scores = np.repeat([1.0, 1.0, 0.0, 1.0], num_events)

    score = score_with_cuts(labels, scores, [0.9], weights)
    numbers = significance(score, {0: 1000.0, 1: 50.0}, 0.1)

    (low,) = numbers["low"]
    (asimov,) = numbers["asimov"]
    (high,) = numbers["high"]
    assert 0 < low < asimov < high
    assert math.isfinite(high) is has_bound
