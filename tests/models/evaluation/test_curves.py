"""Curves and comparisons, by hand, by slow loops, and against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score, roc_curve

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Replicas, estimate
from models.evaluation.curves import (
    background_curve,
    efficiency_against,
    kolmogorov_smirnov,
    ratio,
)
from models.evaluation.discriminant import ReplicatedScore, discriminant
from models.evaluation.intervals import efficiency, thresholds
from models.evaluation.measurements import GRID

Events = tuple[np.ndarray, np.ndarray, np.ndarray]
SIGNAL, BACKGROUND = {1: 1.0}, {0: 1.0}


@st.composite
def signed_events(draw: st.DrawFn) -> Events:
    """Labels of three classes, scores with ties, and weights in quarters from -0.5 to 3.

    No class has less than a weight of 1.
    """
    quarters = st.integers(-2, 12)
    event = st.tuples(st.integers(0, 2), st.integers(0, 6), quarters)
    events = draw(st.lists(event, min_size=1, max_size=40))
    # One event of each class outweighs all negative weights.
    events += [(label, 3, 84) for label in range(3)]
    labels, sixths, weights = np.array(events).T
    return labels, sixths / 6, weights / 4


def score_with_cuts(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray, shares: np.ndarray = GRID
) -> ReplicatedScore:
    replicas = Replicas(labels, np.full(len(labels), "a"), weights, seed=1, num=50)
    return ReplicatedScore(replicas, scores, SIGNAL, shares)


@settings(max_examples=30)
@given(signed_events(), st.sampled_from([0.01, 0.3, 0.9, 0.95, 0.99, 1.0]))
def test_a_working_point_has_the_highest_threshold_that_keeps_enough(
    events: Events, share: float
) -> None:
    labels, scores, weights = events

    score = score_with_cuts(*events, np.array([share]))

    threshold = score.thresholds[score.cuts[0, 0]]
    is_signal = labels == 1
    assert threshold == thresholds(scores[is_signal], weights[is_signal], np.array([share]))[0]
    for label in (0, 2):
        in_class = labels == label
        passing = weights[in_class & (scores >= threshold)].sum() / weights[in_class].sum()
        assert score.class_share(label).value[0] == pytest.approx(passing)


@given(signed_events())
def test_thresholds_are_those_of_a_slow_loop(events: Events) -> None:
    _, scores, weights = events
    shares = np.array([0.99, 0.2, 0.5, 0.9, 1.0])

    cuts = thresholds(scores, weights, shares)

    share_above = {cut: weights[scores >= cut].sum() / weights.sum() for cut in scores}
    for cut, share in zip(cuts, shares, strict=True):
        assert cut == max(score for score in scores if share_above[score] >= share - 1e-9)


def test_a_share_that_is_reached_but_for_rounding_is_reached() -> None:
    # 0.1 + 0.1 + ... is 0.8999999999999999 after nine.
    cuts = thresholds(np.arange(10.0), np.full(10, 0.1), np.arange(1, 11) / 10)

    assert cuts.tolist() == list(range(9, -1, -1))


def test_the_curve_and_its_area_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 1000)
    scores, weights = np.round(rng.normal(labels == 1, 1.0), 2), rng.uniform(0.5, 2, 1000)
    score = score_with_cuts(labels, scores, weights)

    curve, area = background_curve(score, BACKGROUND), estimate(score.area(BACKGROUND))

    background, signal, _ = roc_curve(
        labels, scores, sample_weight=weights, drop_intermediate=False
    )
    first_reached = [np.flatnonzero(signal >= share - 1e-9)[0] for share in curve.signal_efficiency]
    np.testing.assert_allclose(curve.background_efficiency, background[first_reached])
    assert {0.01, 0.9, 0.95, 0.99, 1.0} <= set(curve.signal_efficiency.tolist())
    assert (curve.low < curve.high).all()
    assert area.value == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert 0.005 < area.error < 0.05


def test_a_mixture_counts_its_backgrounds_in_its_fractions() -> None:
    labels = np.repeat([0, 1, 2], [1000, 100, 10])
    score = score_with_cuts(labels, np.array([0.2, 0.5, 0.7])[labels], np.ones(1110))
    fractions = {0: 0.25, 2: 0.75}

    assert background_curve(score, fractions).background_efficiency.tolist() == [0.75] * 100
    assert score.area(fractions)[0] == pytest.approx(0.25)


def test_a_ratio_is_paired_and_nan_where_the_reference_is_zero() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1], 400)
    replicas = Replicas(labels, np.full(800, "a"), np.ones(800), seed=1, num=200)
    scores = rng.normal(2.0 * labels, 1)
    similar_scores = scores + rng.normal(0, 0.05, 800)
    shares = np.array([0.1, 0.8])
    reference = background_curve(ReplicatedScore(replicas, scores, SIGNAL, shares), BACKGROUND)
    curve = background_curve(ReplicatedScore(replicas, similar_scores, SIGNAL, shares), BACKGROUND)

    value, low, high = ratio(curve, reference)

    assert low[1] < value[1] < high[1]
    unpaired_width = (reference.high[1] - reference.low[1]) / reference.background_efficiency[1]
    assert high[1] - low[1] < 0.5 * unpaired_width
    zero_reference = reference._replace(background_efficiency=np.array([0.0, 0.1]))
    assert np.isnan(ratio(curve, zero_reference)[0]).tolist() == [True, False]


def test_the_discriminant_against_one_background_ignores_other_classes() -> None:
    probabilities = np.array([[0.2, 0.6, 0.2], [0.1, 0.3, 0.6], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]])

    score = discriminant(probabilities, signal=SIGNAL, fractions=BACKGROUND)

    np.testing.assert_allclose(score, [0.75, 0.75, 0.5, 0.0])
    exchanged = discriminant(probabilities, signal=BACKGROUND, fractions=SIGNAL)
    np.testing.assert_allclose(exchanged, 1 - score)


def test_a_score_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(UndefinedMetricError, match="not finite"):
        score_with_cuts(np.array([0, 1, 1]), np.array([0.2, np.nan, 0.4]), np.ones(3))


@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=40),
    st.lists(st.integers(2, 12), min_size=2, max_size=40),
    st.floats(0.01, 100),
)
def test_unit_weights_give_the_test_of_scipy(
    first_values: list[int], second_values: list[int], weight: float
) -> None:
    first, second = np.array(first_values, dtype=float), np.array(second_values, dtype=float)

    result = kolmogorov_smirnov(first, np.ones(len(first)), second, np.full(len(second), weight))

    expected = ks_2samp(first, second, method="asymp")
    assert result["distance"] == pytest.approx(expected.statistic)
    assert result["p_value"] == pytest.approx(expected.pvalue, abs=1e-9)


@given(signed_events())
def test_the_distance_is_the_largest_difference_of_two_slow_distribution_functions(
    events: Events,
) -> None:
    labels, scores, weights = events
    first, second = labels == 1, labels != 1
    first_sample = scores[first], weights[first]
    second_sample = scores[second], weights[second]

    result = kolmogorov_smirnov(*first_sample, *second_sample)

    def share_below(in_sample: np.ndarray, score: float) -> float:
        return float(weights[in_sample & (scores <= score)].sum() / weights[in_sample].sum())

    distances = [abs(share_below(first, score) - share_below(second, score)) for score in scores]
    assert result["distance"] == pytest.approx(max(distances))
    assert 0 <= result["p_value"] <= 1
    assert kolmogorov_smirnov(*second_sample, *first_sample) == pytest.approx(result)


def test_p_values_of_weighted_samples_of_one_distribution_are_uniform() -> None:
    rng = np.random.default_rng(7)

    p_values = []
    for _ in range(400):
        first, second = rng.normal(size=(2, 150))
        first_weights, second_weights = rng.uniform(0.2, 2, (2, 150))
        result = kolmogorov_smirnov(first, first_weights, second, second_weights)
        p_values.append(result["p_value"])

    for level in (0.1, 0.3, 0.5, 0.7):
        assert np.mean(np.array(p_values) < level) == pytest.approx(level, abs=0.1)


def test_samples_that_are_too_small_have_a_distance_and_no_p_value() -> None:
    result = kolmogorov_smirnov(np.zeros(1), np.ones(1), np.ones(1), np.ones(1))

    assert result == {"distance": 1.0, "p_value": None}


def test_samples_whose_weights_cancel_have_neither_distance_nor_p_value() -> None:
    result = kolmogorov_smirnov(np.arange(2.0), np.array([1.0, -1.0]), np.arange(3.0), np.ones(3))

    assert result == {"distance": None, "p_value": None}


def test_bins_hold_their_lower_edge_and_the_outer_ones_all_beyond() -> None:
    variable = np.array([-5.0, 0.0, 9.9, 10.0, 25.0, 30.0, 1e9])
    passes = np.array([True, False, False, True, True, False, False])
    weights = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0])

    first, second, last = efficiency_against(variable, passes, weights, [0, 10, 20, 30])

    assert first == efficiency(passes[:3], weights[:3])
    assert second == efficiency(passes[3:4], weights[3:4])
    assert last == efficiency(passes[4:], weights[4:])


def test_a_variable_that_is_nan_is_an_error() -> None:
    variable, passes = np.array([1.0, np.nan]), np.array([True, False])

    with pytest.raises(UndefinedMetricError, match="not a number"):
        efficiency_against(variable, passes, np.ones(2), [0, 1])
