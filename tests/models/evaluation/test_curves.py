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
from models.evaluation.discriminant import Scored, discriminant
from models.evaluation.intervals import efficiency, thresholds
from models.evaluation.measurements import GRID

Events = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def made_events(draw: st.DrawFn, *, lightest: float = 0.25) -> Events:
    """Labels of three classes, scores with ties, and weights in quarters; no class has less than a weight of 1."""
    weight = st.integers(int(4 * lightest), 12).map(lambda quarters: quarters / 4)
    rows = draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), weight), min_size=1, max_size=40)
    )
    rows += [(label, 3, 1.0 + 40 * max(0.0, -lightest)) for label in range(3)]
    labels, places, weights = (np.array(column) for column in zip(*rows, strict=True))
    return labels, places / 6, weights


def scored(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray, expected: np.ndarray = GRID
) -> Scored:
    return Scored(
        Replicas(labels, np.full(len(labels), "a"), weights, seed=1, num=50),
        scores,
        {1: 1.0},
        expected,
    )


@settings(max_examples=30)
@given(made_events(lightest=-0.5), st.sampled_from([0.01, 0.3, 0.9, 0.95, 0.99, 1.0]))
def test_a_working_point_has_the_highest_threshold_that_keeps_enough(
    events: Events, expected: float
) -> None:
    labels, scores, weights = events
    actual = scored(*events, np.array([expected]))
    threshold = actual.thresholds[actual.points[0, 0]]
    ours = labels == 1
    assert threshold == thresholds(scores[ours], weights[ours], np.array([expected]))[0]
    for label in (0, 2):
        of_class = labels == label
        leftovers = weights[of_class & (scores >= threshold)].sum() / weights[of_class].sum()
        assert actual.of_class(label).value[0] == pytest.approx(leftovers)


@given(made_events(lightest=-0.5))
def test_thresholds_are_those_of_a_slow_loop_also_with_negative_weights(events: Events) -> None:
    _, scores, weights = events
    reference = np.array([0.99, 0.2, 0.5, 0.9, 1.0])
    retained = {score: weights[scores >= score].sum() / weights.sum() for score in scores}
    expected = [
        max(score for score in retained if retained[score] >= each - 1e-9) for each in reference
    ]
    assert thresholds(scores, weights, reference).tolist() == expected


def test_a_share_that_is_met_but_for_rounding_is_met() -> None:
    # 0.1 + 0.1 + ... is 0.8999999999999999 after nine.
    actual = thresholds(np.arange(10.0), np.full(10, 0.1), np.arange(1, 11) / 10)
    assert actual.tolist() == list(range(9, -1, -1))


def test_the_curve_and_its_area_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 1000)
    scores, weights = np.round(rng.normal(labels == 1, 1.0), 2), rng.uniform(0.5, 2, 1000)
    actual = scored(labels, scores, weights)
    curve = background_curve(actual, {0: 1.0})
    false, true, _ = roc_curve(labels == 1, scores, sample_weight=weights, drop_intermediate=False)
    expected = [
        false[np.flatnonzero(true >= reference - 1e-9)[0]] for reference in curve.signal_efficiency
    ]
    np.testing.assert_allclose(curve.background_efficiency, expected)
    assert {0.01, 0.9, 0.95, 0.99, 1.0} <= set(curve.signal_efficiency.tolist())
    assert (curve.low < curve.high).all()
    area = estimate(actual.area({0: 1.0}))
    assert area.value == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    assert 0.005 < area.error < 0.05


def test_a_mixture_counts_its_backgrounds_in_its_fractions_whatever_their_numbers_are() -> None:
    labels = np.repeat([0, 1, 2], [1000, 100, 10])
    scores = np.where(labels == 1, 0.5, np.where(labels == 0, 0.2, 0.7))
    actual = scored(labels, scores, np.ones(1110))
    curve = background_curve(actual, {0: 0.25, 2: 0.75})
    assert curve.background_efficiency.tolist() == [0.75] * 100
    assert actual.area({0: 0.25, 2: 0.75})[0] == pytest.approx(0.25)


def test_a_ratio_is_paired_and_no_number_where_there_is_nothing_to_divide_by() -> None:
    rng = np.random.default_rng(2)
    labels = np.repeat([0, 1], 400)
    scores = rng.normal(2.0 * labels, 1)
    replicas = Replicas(labels, np.full(800, "a"), np.ones(800), seed=1, num=200)
    first, second = (
        background_curve(Scored(replicas, score, {1: 1.0}, np.array([0.1, 0.8])), {0: 1.0})
        for score in (scores, scores + rng.normal(0, 0.05, 800))
    )
    value, low, high = ratio(second, first)
    assert low[1] < value[1] < high[1]
    assert high[1] - low[1] < 0.5 * (first.high[1] - first.low[1]) / first.background_efficiency[1]
    nothing = first._replace(background_efficiency=np.array([0.0, 0.1]))
    assert np.isnan(ratio(second, nothing)[0]).tolist() == [True, False]


def test_the_discriminant_against_one_background_ignores_other_classes() -> None:
    probabilities = np.array(
        [[0.2, 0.6, 0.2], [0.1, 0.3, 0.6], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]], dtype=np.float32
    )
    actual = discriminant(probabilities, signal={1: 1.0}, fractions={0: 1.0})
    np.testing.assert_allclose(actual, [0.75, 0.75, 0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(
        discriminant(probabilities, signal={0: 1.0}, fractions={1: 1.0}), 1 - actual, rtol=1e-6
    )


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(UndefinedMetricError, match="not finite"):
        scored(np.array([0, 1, 1]), np.array([0.2, np.nan, 0.4]), np.ones(3))


@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=40),
    st.lists(st.integers(2, 12), min_size=2, max_size=40),
    st.floats(0.01, 100),
)
def test_unit_weights_give_the_test_of_scipy(
    first: list[int], second: list[int], scale: float
) -> None:
    single, another = np.array(first, dtype=float), np.array(second, dtype=float)
    expected = ks_2samp(single, another, method="asymp")
    actual = kolmogorov_smirnov(single, np.ones(len(single)), another, np.full(len(another), scale))
    assert actual["distance"] == pytest.approx(expected.statistic)
    assert actual["p_value"] == pytest.approx(expected.pvalue, abs=1e-9)


@given(made_events(lightest=-0.5))
def test_the_distance_is_the_largest_difference_of_two_slow_distribution_functions(
    events: Events,
) -> None:
    labels, scores, weights = events
    ours, theirs = labels == 1, labels != 1

    def share(selected: np.ndarray, position: float) -> float:
        return float(weights[selected & (scores <= position)].sum() / weights[selected].sum())

    expected = max(abs(share(ours, position) - share(theirs, position)) for position in scores)
    actual = kolmogorov_smirnov(scores[ours], weights[ours], scores[theirs], weights[theirs])
    assert actual["distance"] == pytest.approx(expected)
    assert 0 <= actual["p_value"] <= 1
    back = kolmogorov_smirnov(scores[theirs], weights[theirs], scores[ours], weights[ours])
    assert back == pytest.approx(actual)


def test_p_values_of_weighted_samples_of_one_distribution_are_evenly_spread() -> None:
    rng = np.random.default_rng(7)
    results = []
    for _ in range(400):
        values, weights = rng.normal(size=(2, 150)), rng.uniform(0.2, 2, (2, 150))
        results.append(kolmogorov_smirnov(values[0], weights[0], values[1], weights[1])["p_value"])
    for level in (0.1, 0.3, 0.5, 0.7):
        assert np.mean(np.array(results) < level) == pytest.approx(level, abs=0.1)


def test_samples_that_are_too_small_have_a_distance_and_no_p_value() -> None:
    three = np.array([1.0, 2.0, 3.0])
    small = kolmogorov_smirnov(three[:1], np.ones(1), three[2:], np.ones(1))
    assert small == {"distance": 1.0, "p_value": None}
    cancelled = kolmogorov_smirnov(three[:2], np.array([1.0, -1.0]), three, np.ones(3))
    assert cancelled == {"distance": None, "p_value": None}


def test_bins_hold_their_lower_edge_and_the_outer_ones_all_beyond() -> None:
    variable = np.array([-5.0, 0.0, 9.9, 10.0, 25.0, 30.0, 1e9])
    passing = np.array([True, False, False, True, True, False, False])
    weights = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0])
    results = efficiency_against(variable, passing, weights, [0, 10, 20, 30])
    assert [result.value for result in results if result] == [0.5, 1.0, 0.25]
    assert results[2] == efficiency(passing[4:], weights[4:])


def test_what_cannot_be_binned_is_said() -> None:
    two = np.array([1.0, 2.0])
    with pytest.raises(UndefinedMetricError, match="not a number"):
        efficiency_against(np.array([1.0, np.nan]), two > 1, np.ones(2), [0, 1])
