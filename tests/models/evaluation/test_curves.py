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
    EfficiencyCurve,
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
    events += [(0, 3, 84), (1, 3, 84), (2, 3, 84)]
    labels, sixths_of_score, quarters_of_weight = np.array(events).T
    return labels, sixths_of_score / 6, quarters_of_weight / 4


def score_with_cuts(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray, shares: np.ndarray = GRID
) -> ReplicatedScore:
    samples = np.full(len(labels), "a")
    replicas = Replicas(labels, samples, weights, seed=1, num=50)
    return ReplicatedScore(replicas, scores, SIGNAL, shares)


@settings(max_examples=30)
@given(signed_events(), st.sampled_from([0.01, 0.3, 0.9, 0.95, 0.99, 1.0]))
def test_a_working_point_has_the_highest_threshold_that_keeps_enough(
    events: Events, share: float
) -> None:
    labels, scores, weights = events
    shares = np.array([share])

    score = score_with_cuts(labels, scores, weights, shares)

    threshold = score.thresholds[score.cuts[0, 0]]
    is_signal = labels == 1
    (highest,) = thresholds(scores[is_signal], weights[is_signal], shares)
    assert threshold == highest
    passes = scores >= threshold
    for label in (0, 2):
        in_class = labels == label
        share_passing = weights[in_class & passes].sum() / weights[in_class].sum()
        assert score.class_share(label).value[0] == pytest.approx(share_passing)


@given(signed_events())
def test_thresholds_are_those_of_a_slow_loop(events: Events) -> None:
    _, scores, weights = events
    shares = np.array([0.99, 0.2, 0.5, 0.9, 1.0])

    cuts = thresholds(scores, weights, shares)

    for cut, share in zip(cuts, shares, strict=True):
        scores_that_keep_enough = []
        for score in scores:
            share_above = weights[scores >= score].sum() / weights.sum()
            if share_above >= share - 1e-9:
                scores_that_keep_enough.append(score)
        assert cut == max(scores_that_keep_enough)


def test_a_share_that_is_reached_but_for_rounding_is_reached() -> None:
    # 0.1 + 0.1 + ... is 0.8999999999999999 after nine.
    scores = np.arange(10.0)
    weights = np.full(10, 0.1)
    shares = np.arange(1, 11) / 10

    cuts = thresholds(scores, weights, shares)

    assert cuts.tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_the_curve_and_its_area_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 1000)
    # Rounded scores have ties.
    scores = np.round(rng.normal(labels, 1.0), 2)
    weights = rng.uniform(0.5, 2, 1000)
    score = score_with_cuts(labels, scores, weights)

    curve = background_curve(score, BACKGROUND)
    area = estimate(score.area(BACKGROUND))

    background, signal, _ = roc_curve(
        labels, scores, sample_weight=weights, drop_intermediate=False
    )
    first_reached = np.searchsorted(signal, curve.signal_efficiency - 1e-9)
    np.testing.assert_allclose(curve.background_efficiency, background[first_reached])
    assert {0.01, 0.9, 0.95, 0.99, 1.0} <= set(curve.signal_efficiency.tolist())
    assert (curve.low < curve.high).all()
    expected_area = roc_auc_score(labels, scores, sample_weight=weights)
    assert area.value == pytest.approx(expected_area)
    assert 0.005 < area.error < 0.05


def test_a_mixture_counts_its_backgrounds_in_its_fractions() -> None:
    events_per_class = [1000, 100, 10]
    labels = np.repeat([0, 1, 2], events_per_class)
    scores = np.repeat([0.2, 0.5, 0.7], events_per_class)
    weights = np.ones(1110)
    score = score_with_cuts(labels, scores, weights)
    fractions = {0: 0.25, 2: 0.75}

    curve = background_curve(score, fractions)
    area, *_ = score.area(fractions)

    # Class 0 lies below all of the signal, class 2 above.
    assert curve.background_efficiency.tolist() == [0.75] * 100
    assert area == pytest.approx(0.25)


def test_a_ratio_is_paired_and_nan_where_the_reference_is_zero() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1], 400)
    samples = np.full(800, "a")
    weights = np.ones(800)
    replicas = Replicas(labels, samples, weights, seed=1, num=200)
    shares = np.array([0.1, 0.8])

    def curve_of(scores: np.ndarray) -> EfficiencyCurve:
        score = ReplicatedScore(replicas, scores, SIGNAL, shares)
        return background_curve(score, BACKGROUND)

    scores = rng.normal(2.0 * labels, 1)
    similar_scores = scores + rng.normal(0, 0.05, 800)
    reference = curve_of(scores)
    curve = curve_of(similar_scores)

    nominal, low, high = ratio(curve, reference)

    assert low[1] < nominal[1] < high[1]
    paired_width = high[1] - low[1]
    unpaired_width = (reference.high[1] - reference.low[1]) / reference.background_efficiency[1]
    assert paired_width < 0.5 * unpaired_width
    zero_reference = reference._replace(background_efficiency=np.array([0.0, 0.1]))
    ratio_to_zero, _, _ = ratio(curve, zero_reference)
    assert np.isnan(ratio_to_zero).tolist() == [True, False]


def test_the_discriminant_against_one_background_ignores_other_classes() -> None:
    probabilities = np.array([[0.2, 0.6, 0.2], [0.1, 0.3, 0.6], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]])

    score = discriminant(probabilities, signal=SIGNAL, fractions=BACKGROUND)

    np.testing.assert_allclose(score, [0.75, 0.75, 0.5, 0.0])
    exchanged = discriminant(probabilities, signal=BACKGROUND, fractions=SIGNAL)
    np.testing.assert_allclose(exchanged, 1 - score)


def test_a_score_that_is_not_finite_is_an_error() -> None:
    labels = np.array([0, 1, 1])
    scores = np.array([0.2, np.nan, 0.4])

    with pytest.raises(UndefinedMetricError, match="not finite"):
        score_with_cuts(labels, scores, np.ones(3))


@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=40),
    st.lists(st.integers(2, 12), min_size=2, max_size=40),
    st.floats(0.01, 100),
)
def test_unit_weights_give_the_test_of_scipy(
    first_values: list[int], second_values: list[int], weight: float
) -> None:
    first = np.array(first_values, dtype=float)
    second = np.array(second_values, dtype=float)
    first_weights = np.ones(len(first))
    second_weights = np.full(len(second), weight)

    comparison = kolmogorov_smirnov(first, first_weights, second, second_weights)

    expected = ks_2samp(first, second, method="asymp")
    assert comparison["distance"] == pytest.approx(expected.statistic)
    assert comparison["p_value"] == pytest.approx(expected.pvalue, abs=1e-9)


@given(signed_events())
def test_the_distance_is_the_largest_difference_of_two_slow_distribution_functions(
    events: Events,
) -> None:
    labels, scores, weights = events
    in_first = labels == 1
    in_second = labels != 1
    first_sample = scores[in_first], weights[in_first]
    second_sample = scores[in_second], weights[in_second]

    comparison = kolmogorov_smirnov(*first_sample, *second_sample)

    def share_below(in_sample: np.ndarray, score: float) -> float:
        weight_below = weights[in_sample & (scores <= score)].sum()
        return float(weight_below / weights[in_sample].sum())

    distances = []
    for score in scores:
        difference = share_below(in_first, score) - share_below(in_second, score)
        distances.append(abs(difference))
    assert comparison["distance"] == pytest.approx(max(distances))
    assert 0 <= comparison["p_value"] <= 1
    exchanged = kolmogorov_smirnov(*second_sample, *first_sample)
    assert exchanged == pytest.approx(comparison)


def test_p_values_of_weighted_samples_of_one_distribution_are_uniform() -> None:
    rng = np.random.default_rng(7)

    p_values = []
    for _ in range(400):
        first, second = rng.normal(size=(2, 150))
        first_weights, second_weights = rng.uniform(0.2, 2, (2, 150))
        comparison = kolmogorov_smirnov(first, first_weights, second, second_weights)
        p_values.append(comparison["p_value"])

    for level in (0.1, 0.3, 0.5, 0.7):
        is_below = np.array(p_values) < level
        assert is_below.mean() == pytest.approx(level, abs=0.1)


def test_samples_that_are_too_small_have_a_distance_and_no_p_value() -> None:
    weight = np.ones(1)

    comparison = kolmogorov_smirnov(np.zeros(1), weight, np.ones(1), weight)

    assert comparison == {"distance": 1.0, "p_value": None}


def test_samples_whose_weights_cancel_have_neither_distance_nor_p_value() -> None:
    first = np.array([0.0, 1.0])
    cancelling_weights = np.array([1.0, -1.0])
    second = np.array([0.0, 1.0, 2.0])

    comparison = kolmogorov_smirnov(first, cancelling_weights, second, np.ones(3))

    assert comparison == {"distance": None, "p_value": None}


def test_bins_hold_their_lower_edge_and_the_outer_ones_all_beyond() -> None:
    variable = np.array([-5.0, 0.0, 9.9, 10.0, 25.0, 30.0, 1e9])
    passes = np.array([True, False, False, True, True, False, False])
    weights = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0])

    bins = efficiency_against(variable, passes, weights, [0, 10, 20, 30])

    rows_of_bins = [slice(0, 3), slice(3, 4), slice(4, 7)]
    for efficiency_in_bin, rows in zip(bins, rows_of_bins, strict=True):
        assert efficiency_in_bin == efficiency(passes[rows], weights[rows])


def test_a_variable_that_is_nan_is_an_error() -> None:
    variable = np.array([1.0, np.nan])
    passes = np.array([True, False])

    with pytest.raises(UndefinedMetricError, match="not a number"):
        efficiency_against(variable, passes, np.ones(2), [0, 1])
