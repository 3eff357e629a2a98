"""Significances against calculations of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from models.evaluation.bootstrap import Replicas
from models.evaluation.discriminant import Scored
from models.evaluation.significance import asimov_significance, significance


def by_likelihood(signal: float, background: float, error: float) -> float:
    """The root of q0 of the Asimov data: a count, and one that measures the background with this absolute error."""
    ratio = background / error**2
    seen, beside = signal + background, ratio * background

    def minus_log(logs: np.ndarray) -> float:
        b = math.exp(logs[0])
        return b - seen * math.log(b) + ratio * b - beside * math.log(ratio * b)

    actual = minimize(
        minus_log,
        [math.log(background)],
        method="Nelder-Mead",
        options={"xatol": 1e-12, "fatol": 1e-13},
    )
    free = seen - seen * math.log(seen) + beside - beside * math.log(beside)
    return math.sqrt(2 * (actual.fun - free))


@pytest.mark.parametrize(
    "size", [(5, 3, 0.5), (10, 100, 0.1), (30, 50, 0.3), (0.5, 400, 0.05), (80, 2, 1.0)]
)
def test_the_asimov_significance_is_that_of_the_profiled_likelihood(
    size: tuple[float, float, float],
) -> None:
    signal, background, uncertainty = size
    expected = by_likelihood(signal, background, uncertainty * background)
    actual = asimov_significance(np.array(signal), np.array(background), uncertainty)
    assert float(actual) == pytest.approx(expected, rel=1e-4)


def test_a_small_uncertainty_is_none_and_few_signal_events_give_s_over_sqrt_b() -> None:
    signal, background = np.array([3.0, 40.0]), np.array([50.0, 7.0])
    certain = asimov_significance(signal, background, 0.0)
    assert asimov_significance(signal, background, 1e-9) == pytest.approx(certain, rel=1e-6)
    small, many = np.array([1.0]), np.array([1e6])
    assert asimov_significance(small, many, 0.0) == pytest.approx(1e-3, rel=1e-3)
    assert asimov_significance(small, many, 0.1) == pytest.approx(
        1 / math.hypot(1e3, 1e5), rel=1e-3
    )
    # Signed weights may add up to less than nothing.
    for uncertainty in (0.0, 0.1):
        assert asimov_significance(-signal, background, uncertainty).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("num_signal", "num_background"), [(300, 2000), (2000, 300)])
def test_the_band_covers_the_truth_at_its_cut(num_signal: int, num_background: int) -> None:
    # The cut moved in the replicas until it kept the same share of the signal: the band covered up to 97 %.
    rng, trials, expected = np.random.default_rng(5), 120, np.array([0.5, 0.7, 0.9])
    below, above = np.zeros((2, len(expected)))
    labels = np.repeat([0, 1], [num_background, num_signal])
    for seed in range(trials):
        # Below x are x**2 of the signal and 1 - (1 - x)**2 of the background.
        chunks = 1 - np.sqrt(rng.random(num_background)), np.sqrt(rng.random(num_signal))
        replicas = Replicas(labels, labels.astype(str), np.ones(len(labels)), seed=seed, num=200)
        actual = significance(
            Scored(replicas, np.concatenate(chunks), {1: 1.0}, expected), {0: 1000.0, 1: 50.0}, 0.1
        )
        truth = asimov_significance(
            50 * (1 - actual["threshold"] ** 2), 1000 * (1 - actual["threshold"]) ** 2, 0.1
        )
        below += truth < actual["low"]
        above += truth > actual["high"]
    assert (np.abs(below / trials - 0.16) < 0.1).all()
    assert (np.abs(above / trials - 0.16) < 0.1).all()
    assert (np.abs((below + above) / trials - 0.32) < 0.12).all()


def test_a_background_of_which_nothing_passes_counts_with_one_event_in_the_errors() -> None:
    # Of 31 and 20 background events none and 10 pass, with rates of 10 and 0.6.
    labels = np.repeat([0, 1, 2], [31, 100, 20])
    scores = np.where(labels == 2, np.arange(len(labels)) % 2, labels) * 1.0
    replicas = Replicas(labels, labels.astype(str), np.ones(len(labels)), seed=1, num=200)
    expected = {0: 10.0, 1: 50.0, 2: 0.6}
    scored = Scored(replicas, scores, {1: 1.0}, np.array([0.9]))
    pair = significance(scored, expected, 0.1)
    assert pair["background"] == pytest.approx([0.3])
    assert pair["simple"] == pytest.approx([50 / math.sqrt(0.3)])
    assert pair["effective"] == pytest.approx([0.3**2 / (10 * 0.03**2 + (10 / 31) ** 2)])

    alone = labels < 2
    replicas = Replicas(labels[alone], labels[alone].astype(str), np.ones(131), seed=1, num=200)
    scored = Scored(replicas, scores[alone], {1: 1.0}, np.array([0.9]))
    none = significance(scored, {0: 1000.0, 1: 50.0}, 0.1)
    assert 0.5 < none["low"][0] < asimov_significance(np.array(50.0), np.array(1000 / 31), 0.1)
    assert np.isnan([none["asimov"][0], none["simple"][0]]).all()
    assert none["high"] == [math.inf]
    assert none["effective"] == [0.0]


@pytest.mark.parametrize(("num_positive", "has_bound"), [(100, True), (46, False)])
def test_replicas_without_background_have_an_infinite_significance(
    num_positive: int, has_bound: bool
) -> None:
    """Signed weights: 1 % or 40 % of the replicas have no background, where the measured one is above 0."""
    weights = np.concatenate([np.ones(num_positive), np.full(40, -1.0), np.ones(300 + 100)])
    labels = np.repeat([0, 1], [num_positive + 40 + 300, 100])
    scores = np.concatenate([np.ones(num_positive + 40), np.zeros(300), np.ones(100)])
    replicas = Replicas(labels, labels.astype(str), weights, seed=1, num=200)
    actual = significance(
        Scored(replicas, scores, {1: 1.0}, np.array([0.9])), {0: 1000.0, 1: 50.0}, 0.1
    )
    (low,), (value,), (high,) = (actual[name] for name in ("low", "asimov", "high"))
    assert 0 < low < value < high
    assert math.isfinite(high) is has_bound
