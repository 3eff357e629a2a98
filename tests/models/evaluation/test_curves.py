"""Curves and comparisons, by hand, by slow loops, and against scikit-learn and scipy."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score, roc_curve

from features.columns import HLF_NAMES
from models.errors import UndefinedMetricError
from models.evaluation.curves import (
    KINEMATIC_EDGES,
    EfficiencyCurve,
    auc_of_two,
    background_curve,
    calibration,
    calibration_error,
    efficiency_against,
    kolmogorov_smirnov,
    likelihood_ratio,
)
from models.evaluation.efficiencies import efficiency, thresholds, working_point

Events = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def made_events(draw: st.DrawFn, *, lightest: float = 0.25) -> Events:
    """Labels of three classes, scores with ties, and weights in quarters; no class has less than a weight of 1."""
    weight = st.integers(int(4 * lightest), 12).map(lambda quarters: quarters / 4)
    rows = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), weight), min_size=1, max_size=40))
    rows += [(label, 3, 1.0 + 40 * max(0.0, -lightest)) for label in range(3)]
    labels, places, weights = (np.array(column) for column in zip(*rows, strict=True))
    return labels, places / 6, weights


@given(made_events(lightest=-0.5), st.sampled_from([0.01, 0.3, 0.9, 0.95, 0.99, 1.0]))
def test_each_point_of_a_curve_is_the_working_point_also_with_negative_weights(events: Events, wanted: float) -> None:
    labels, scores, weights = events
    point = working_point(labels, scores, weights, signal=1, classes=[0, 1, 2], wanted=wanted)
    for label in (0, 2):
        curve = background_curve(labels, scores, weights, signal=1, background=[label])
        (place,) = np.flatnonzero(curve.signal_efficiency == wanted)
        found = (curve.background_efficiency[place], curve.low[place], curve.high[place])
        assert found == pytest.approx(point.backgrounds[label], abs=1e-9)


@given(made_events(lightest=-0.5))
def test_thresholds_are_those_of_a_slow_loop_also_with_negative_weights(events: Events) -> None:
    _, scores, weights = events
    wanted = np.array([0.99, 0.2, 0.5, 0.9, 1.0])
    kept = {score: weights[scores >= score].sum() / weights.sum() for score in scores}
    expected = [max(score for score in kept if kept[score] >= each - 1e-9) for each in wanted]
    assert thresholds(scores, weights, wanted).tolist() == expected


def test_where_negative_weights_make_the_share_fall_and_rise_the_highest_threshold_counts() -> None:
    # Kept from the top: 1.25, 0.5, 0.75, 1.
    found = thresholds(np.array([4.0, 3.0, 2.0, 1.0]), np.array([5.0, -3.0, 1.0, 1.0]), np.array([0.4, 0.6, 1.0]))
    assert found.tolist() == [4, 4, 4]


def test_a_share_that_is_met_but_for_rounding_is_met() -> None:
    # 0.1 + 0.1 + ... is 0.8999999999999999 after nine.
    found = thresholds(np.arange(10.0), np.full(10, 0.1), np.arange(1, 11) / 10)
    assert found.tolist() == list(range(9, -1, -1))


@given(made_events())
def test_a_curve_of_positive_weights_rises_inside_its_band(events: Events) -> None:
    curve = background_curve(*events, signal=1)
    assert (np.diff(curve.background_efficiency) >= 0).all()
    assert (curve.low <= curve.background_efficiency + 1e-12).all()
    assert (curve.background_efficiency <= curve.high + 1e-12).all()
    assert curve.high.max() <= 1
    assert curve.low.min() >= 0


@given(made_events(), st.randoms(use_true_random=False))
def test_the_order_of_events_is_of_no_account_and_a_double_event_is_one_of_double_weight(
    events: Events, random: object
) -> None:
    labels, scores, weights = events
    order = np.arange(len(labels))
    random.shuffle(order)  # type: ignore[attr-defined]
    whole = background_curve(labels, scores, weights, signal=1)
    assert_same(background_curve(labels[order], scores[order], weights[order], signal=1), whole)
    heavy = np.where(order == 0, 2, 1) * weights
    twice = [np.append(column, column[order == 0]) for column in events]
    once = background_curve(labels, scores, heavy, signal=1).background_efficiency
    np.testing.assert_allclose(background_curve(*twice, signal=1).background_efficiency, once, atol=1e-12)


def assert_same(first: EfficiencyCurve, second: EfficiencyCurve) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_the_curve_is_the_roc_curve_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 2000)
    scores, weights = np.round(rng.normal(labels == 1, 1.0), 2), rng.uniform(0.5, 2, 2000)
    curve = background_curve(labels, scores, weights, signal=1)
    false, true, _ = roc_curve(labels == 1, scores, sample_weight=weights, drop_intermediate=False)
    expected = [false[np.flatnonzero(true >= wanted - 1e-9)[0]] for wanted in curve.signal_efficiency]
    np.testing.assert_allclose(curve.background_efficiency, expected)


def test_the_band_is_clopper_and_pearsons_with_the_effective_number_of_events() -> None:
    labels = np.array([1] * 4 + [0] * 4)
    scores = np.array([0.9, 0.8, 0.7, 0.2, 0.95, 0.75, 0.3, 0.1])
    weights = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.0])
    curve = background_curve(labels, scores, weights, signal=1, num_points=4)
    assert curve.signal_efficiency.tolist() == [0.25, 0.5, 0.75, 1]
    # Thresholds 0.9, 0.8, 0.7, 0.2.
    assert curve.background_efficiency.tolist() == [1 / 8, 1 / 8, 4 / 8, 7 / 8]
    size = 8**2 / 20
    passed = curve.background_efficiency * size
    np.testing.assert_allclose(curve.low, beta.ppf(0.31731 / 2, passed, size - passed + 1))
    np.testing.assert_allclose(curve.high, beta.ppf(1 - 0.31731 / 2, passed + 1, size - passed))


def test_the_grid_holds_the_usual_working_points() -> None:
    curve = background_curve(np.array([0, 1]), np.array([0.2, 0.7]), np.ones(2), signal=1)
    assert {0.01, 0.9, 0.95, 0.99, 1.0} <= set(curve.signal_efficiency.tolist())
    # No background event passes, or one does not: neither band is empty.
    assert curve.background_efficiency.tolist() == [0] * 100
    assert curve.low.tolist() == [0] * 100
    assert 0.8 < curve.high[0] < 0.9


def test_a_million_events_take_seconds() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 10**6)
    scores = rng.normal(labels == 1, 1.0)
    start = time.perf_counter()
    curve = background_curve(labels, scores, np.ones(10**6), signal=1)
    assert time.perf_counter() - start < 10
    # Two Gaussians one standard deviation apart: half the signal lies above 1, as does 15.9 % of the background.
    assert curve.background_efficiency[49] == pytest.approx(0.1587, abs=0.002)


def test_what_has_no_curve_is_said() -> None:
    scores, ones = np.array([0.2, 0.7, 0.4]), np.ones(3)
    with pytest.raises(UndefinedMetricError, match="there is no background"):
        background_curve(np.ones(3, dtype=int), scores, ones, signal=1)
    with pytest.raises(UndefinedMetricError, match="there is no background"):
        background_curve(np.array([0, 1, 1]), scores, ones, signal=1, background=[2])
    with pytest.raises(UndefinedMetricError, match="there is no background"):
        background_curve(np.array([0, 0, 1]), scores, np.array([1.0, -1.0, 1.0]), signal=1)
    with pytest.raises(UndefinedMetricError, match="there is no signal"):
        background_curve(np.zeros(3, dtype=int), scores, ones, signal=1)
    with pytest.raises(UndefinedMetricError, match="not finite"):
        background_curve(np.array([0, 1, 1]), np.array([0.2, np.nan, 0.4]), ones, signal=1)
    with pytest.raises(ValueError, match="signal and background at the same time"):
        background_curve(np.array([0, 1, 1]), scores, ones, signal=1, background=[0, 1])


def test_the_likelihood_ratio_ignores_other_classes() -> None:
    probabilities = np.array([[0.2, 0.6, 0.2], [0.1, 0.3, 0.6], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]], dtype=np.float32)
    found = likelihood_ratio(probabilities, signal=1, background=0)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [0.75, 0.75, 0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(likelihood_ratio(probabilities, signal=0, background=1), 1 - found, rtol=1e-6)


def test_the_auc_of_two_classes_is_that_of_scikit_learn_on_their_events() -> None:
    rng = np.random.default_rng(3)
    labels, probabilities = rng.integers(0, 3, 600), rng.dirichlet([1, 1, 1], 600)
    probabilities[np.arange(600), labels] += 0.2
    weights = rng.uniform(0.1, 2, 600)
    scores = likelihood_ratio(probabilities, signal=2, background=0)
    found = auc_of_two(labels, scores, weights, signal=2, background=0)
    chosen = labels != 1
    assert found.value == pytest.approx(
        roc_auc_score(labels[chosen] == 2, scores[chosen], sample_weight=weights[chosen])
    )
    assert 0 < found.error < 0.1
    back = auc_of_two(labels, 1 - scores, weights, signal=0, background=2)
    assert back.value == pytest.approx(found.value)


def test_the_auc_of_a_class_that_is_not_there_is_undefined() -> None:
    labels, scores = np.array([0, 0, 1]), np.array([0.1, 0.2, 0.3])
    for signal, background in ((2, 0), (0, 2)):
        with pytest.raises(UndefinedMetricError, match="class 2 cannot be separated"):
            auc_of_two(labels, scores, np.ones(3), signal=signal, background=background)
    with pytest.raises(UndefinedMetricError, match="not finite"):
        auc_of_two(labels, np.array([0.1, np.inf, 0.2]), np.ones(3), signal=1, background=0)


def test_calibration_is_that_of_scikit_learn_ties_on_edges_included() -> None:
    rng = np.random.default_rng(4)
    predicted = np.round(rng.uniform(0, 1, 500), 2)
    is_class = rng.uniform(0, 1, 500) < predicted**2
    bins = calibration(is_class, predicted, np.ones(500), num_bins=4)
    observed, mean = calibration_curve(is_class, predicted, n_bins=4)
    np.testing.assert_allclose([each.observed.value for each in bins], observed)
    np.testing.assert_allclose([each.mean_predicted for each in bins], mean)
    assert [(each.low, each.high) for each in bins] == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]
    assert sum(each.num_events for each in bins) == 500


def test_calibration_by_hand_with_weights() -> None:
    predicted = np.array([0.0, 0.1, 0.72, 0.78, 1.0, 0.55, 0.35])
    is_class = np.array([False, True, True, False, True, True, True])
    weights = np.array([1.0, 3.0, 2.0, 1.0, 1.0, 0.0, -1.0])
    bins = calibration(is_class, predicted, weights)
    # The bins of 0.55 and of 0.35 have no weight.
    assert [each.low for each in bins] == [0.0, 0.7, 0.9]
    assert [each.weight for each in bins] == [4, 3, 1]
    assert [each.num_events for each in bins] == [2, 2, 1]
    assert [each.mean_predicted for each in bins] == pytest.approx([0.075, 0.74, 1.0])
    assert [each.observed.value for each in bins] == pytest.approx([0.75, 2 / 3, 1.0])
    assert bins[1].observed == efficiency(np.array([True, False]), np.array([2.0, 1.0]))
    assert calibration_error(bins) == pytest.approx((4 * 0.675 + 3 * (0.74 - 2 / 3)) / 8)


@given(made_events(), st.floats(0.1, 50))
def test_a_calibration_error_lies_between_0_and_1_and_ignores_the_scale_of_weights(
    events: Events, scale: float
) -> None:
    labels, scores, weights = events
    found = calibration_error(calibration(labels == 1, scores, weights))
    assert 0 <= found <= 1
    assert calibration_error(calibration(labels == 1, scores, weights * scale)) == pytest.approx(found)
    twice = calibration_error(calibration(np.tile(labels == 1, 2), np.tile(scores, 2), np.tile(weights, 2)))
    assert twice == pytest.approx(found)


def test_right_probabilities_have_a_small_calibration_error_and_wrong_ones_a_large_one() -> None:
    rng = np.random.default_rng(6)
    predicted = rng.uniform(0, 1, 20_000)
    is_class = rng.uniform(0, 1, 20_000) < predicted
    assert calibration_error(calibration(is_class, predicted, np.ones(20_000))) < 0.015
    # Reversed: the mean of |1 - 2 p| is 1/2.
    assert calibration_error(calibration(is_class, 1 - predicted, np.ones(20_000))) == pytest.approx(0.5, abs=0.02)


def test_what_cannot_be_calibrated_is_said() -> None:
    with pytest.raises(UndefinedMetricError, match="no bin"):
        calibration_error(calibration(np.array([True]), np.array([0.5]), np.zeros(1)))
    for wrong in (-0.1, 1.1, np.nan):
        with pytest.raises(UndefinedMetricError, match="outside 0 to 1"):
            calibration(np.array([True]), np.array([wrong]), np.ones(1))


@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=40),
    st.lists(st.integers(2, 12), min_size=2, max_size=40),
    st.floats(0.01, 100),
)
def test_unit_weights_give_the_test_of_scipy(first: list[int], second: list[int], scale: float) -> None:
    one, other = np.array(first, dtype=float), np.array(second, dtype=float)
    expected = ks_2samp(one, other, method="asymp")
    found = kolmogorov_smirnov(one, np.ones(len(one)), other, np.full(len(other), scale))
    assert found.distance == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-9)


@given(made_events(lightest=-0.5))
def test_the_distance_is_the_largest_difference_of_two_slow_distribution_functions(events: Events) -> None:
    labels, scores, weights = events
    ours, theirs = labels == 1, labels != 1

    def share(chosen: np.ndarray, place: float) -> float:
        return float(weights[chosen & (scores <= place)].sum() / weights[chosen].sum())

    expected = max(abs(share(ours, place) - share(theirs, place)) for place in scores)
    found = kolmogorov_smirnov(scores[ours], weights[ours], scores[theirs], weights[theirs])
    assert found.distance == pytest.approx(expected)
    assert 0 <= found.p_value <= 1
    back = kolmogorov_smirnov(scores[theirs], weights[theirs], scores[ours], weights[ours])
    assert back == pytest.approx(found)


def test_uneven_weights_count_as_fewer_events() -> None:
    first, second = np.linspace(0, 1, 100), np.linspace(0.2, 1.2, 100)
    uneven = np.tile([0.2, 1.8], 50)
    # 100 events with these weights count as 60.98, and 60.98^2 / (2 * 60.98) rounds to 30.
    found = kolmogorov_smirnov(first, uneven, second, uneven)
    even = kolmogorov_smirnov(first, np.ones(100), second, np.ones(100))
    assert found.distance == pytest.approx(even.distance, abs=0.02)
    assert found.p_value > 3 * even.p_value


def test_p_values_of_weighted_samples_of_one_distribution_are_evenly_spread() -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(400):
        values, weights = rng.normal(size=(2, 150)), rng.uniform(0.2, 2, (2, 150))
        found.append(kolmogorov_smirnov(values[0], weights[0], values[1], weights[1]).p_value)
    for level in (0.1, 0.3, 0.5, 0.7):
        assert np.mean(np.array(found) < level) == pytest.approx(level, abs=0.1)


def test_negative_weights_can_take_the_distance_above_one() -> None:
    # Distribution functions: 2 at 0, then 1; and 0 up to 5.
    first, weights = np.repeat([0.0, 1.0], [100, 50]), np.repeat([1.0, -1.0], [100, 50])
    found = kolmogorov_smirnov(first, weights, np.full(9, 5.0), np.ones(9))
    assert found == (2.0, 0.0)


def test_samples_that_cannot_be_compared_are_said() -> None:
    three = np.array([1.0, 2.0, 3.0])
    for empty in (np.zeros(3), np.array([1.0, -1.0, 0.0]), -np.ones(3)):
        with pytest.raises(UndefinedMetricError, match="weights add up to 0 or less"):
            kolmogorov_smirnov(three, empty, three, np.ones(3))
        with pytest.raises(UndefinedMetricError, match="weights add up to 0 or less"):
            kolmogorov_smirnov(three, np.ones(3), three, empty)
    with pytest.raises(UndefinedMetricError, match="not a number"):
        kolmogorov_smirnov(three, np.ones(3), np.array([1.0, np.nan]), np.ones(2))
    with pytest.raises(UndefinedMetricError, match="too small to compare"):
        kolmogorov_smirnov(three[:1], np.ones(1), three[2:], np.ones(1))


def test_bins_hold_their_lower_edge_and_the_outer_ones_all_beyond() -> None:
    variable = np.array([-5.0, 0.0, 9.9, 10.0, 25.0, 30.0, 1e9])
    passing = np.array([True, False, False, True, True, False, False])
    weights = np.array([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0])
    found = efficiency_against(variable, passing, weights, [0, 10, 20, 30])
    assert [each.value for each in found if each] == [0.5, 1.0, 0.25]
    assert found[2] == efficiency(passing[4:], weights[4:])


@given(made_events(lightest=-0.5))
def test_bins_are_those_of_a_slow_loop_and_cannot_be_measured_without_weight(events: Events) -> None:
    labels, scores, weights = events
    edges = [0.1, 0.3, 0.45, 0.55, 0.8]
    found = efficiency_against(scores, labels == 1, weights, edges)
    inner = [-np.inf, *edges[1:-1], np.inf]
    for each, low, high in zip(found, inner[:-1], inner[1:], strict=True):
        inside = [index for index, score in enumerate(scores) if low <= score < high]
        total = sum(weights[index] for index in inside)
        if each is None:
            assert total <= 0
        else:
            passed = sum(weights[index] for index in inside if labels[index] == 1)
            assert each.value == pytest.approx(passed / total)


def test_what_cannot_be_binned_is_said() -> None:
    two = np.array([1.0, 2.0])
    for edges in ([], [1.0], [1.0, 1.0], [2.0, 1.0], [0.0, np.nan]):
        with pytest.raises(ValueError, match="at least 2 and rise"):
            efficiency_against(two, two > 1, np.ones(2), edges)
    with pytest.raises(UndefinedMetricError, match="not a number"):
        efficiency_against(np.array([1.0, np.nan]), two > 1, np.ones(2), [0, 1])


def test_the_kinematic_bins_are_of_features_that_exist() -> None:
    assert set(KINEMATIC_EDGES) < set(HLF_NAMES)
    for edges in KINEMATIC_EDGES.values():
        assert all(low < high for low, high in pairwise(edges))
