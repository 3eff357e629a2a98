"""Efficiencies, their intervals, and working points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import roc_curve

from models.errors import UndefinedMetricError
from models.evaluation.efficiencies import efficiency, purity, working_point


@pytest.mark.parametrize(("passed", "total"), [(0, 5), (1, 5), (3, 7), (50, 1000), (5, 5)])
def test_the_interval_is_where_the_count_becomes_unlikely(passed: int, total: int) -> None:
    found = efficiency(np.arange(total) < passed, np.ones(total), outside=0.1)
    assert found.value == passed / total
    # By definition: at the ends, as many or more (as few or fewer) have a probability of 5 %.
    if passed:
        assert binom.sf(passed - 1, total, found.low) == pytest.approx(0.05)
    else:
        assert found.low == 0
    if passed < total:
        assert binom.cdf(passed, total, found.high) == pytest.approx(0.05)
    else:
        assert found.high == 1


def test_the_interval_covers_at_least_what_it_promises() -> None:
    total, true = 30, 0.93
    intervals = [efficiency(np.arange(total) < passed, np.ones(total)) for passed in range(total + 1)]
    covered = sum(
        binom.pmf(passed, total, true) for passed, each in enumerate(intervals) if each.low <= true <= each.high
    )
    assert covered > 0.683


def test_equal_weights_of_any_size_count_as_none() -> None:
    passing = np.array([True, False, True, True])
    assert efficiency(passing, np.full(4, 7.0)) == pytest.approx(efficiency(passing, np.ones(4)))


def test_uneven_weights_widen_the_interval() -> None:
    passing = np.tile([True, False], 50)
    even = efficiency(passing, np.ones(100))
    uneven = efficiency(passing, np.repeat([0.1, 1.9], 50))
    assert even.value == pytest.approx(uneven.value) == 0.5
    assert uneven.high - uneven.low > even.high - even.low


def test_negative_weights_may_leave_the_usual_range_and_the_interval_does_not() -> None:
    found = efficiency(np.array([True, True, False]), np.array([1.0, 1.0, -0.5]))
    assert found.value == pytest.approx(2 / 1.5)
    assert 0 <= found.low <= found.high == 1


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [-1.0]])
def test_without_weight_there_is_no_efficiency(weights: list[float]) -> None:
    with pytest.raises(UndefinedMetricError, match="not defined"):
        efficiency(np.ones(len(weights), dtype=bool), np.array(weights))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.floats(0.1, 3.0)), min_size=1, max_size=60),
    st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]),
)
def test_the_threshold_is_the_highest_that_keeps_enough(events: list[tuple[int, int, float]], wanted: float) -> None:
    events = [*events, (0, 3, 1.0), (1, 3, 1.0), (2, 3, 1.0)]
    labels, places, weights = (np.array(column) for column in zip(*events, strict=True))
    scores = places / 6
    found = working_point(labels, scores, weights, signal=1, classes=[0, 1, 2], wanted=wanted)

    def kept(threshold: float, label: int) -> float:
        of_class = labels == label
        return float(weights[of_class & (scores >= threshold)].sum() / weights[of_class].sum())

    assert kept(found.threshold, 1) >= wanted - 1e-9
    higher = [value for value in scores[labels == 1] if value > found.threshold]
    assert all(kept(value, 1) < wanted for value in higher)
    assert found.signal.value == pytest.approx(kept(found.threshold, 1))
    assert {label: each.value for label, each in found.backgrounds.items()} == pytest.approx(
        {label: kept(found.threshold, label) for label in (0, 2)}
    )


def test_a_working_point_lies_on_the_roc_curve_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 500)
    scores = rng.normal(labels, 1.0)
    weights = rng.uniform(0.5, 2, 500)
    found = working_point(labels, scores, weights, signal=1, classes=[0, 1], wanted=0.9)
    false_positive, true_positive, thresholds = roc_curve(
        labels, scores, sample_weight=weights, drop_intermediate=False
    )
    (place,) = np.flatnonzero(thresholds == found.threshold)
    assert found.signal.value == pytest.approx(true_positive[place])
    assert found.backgrounds[0].value == pytest.approx(false_positive[place])


def test_a_point_with_few_failing_events_is_not_measurable() -> None:
    labels = np.repeat([0, 1], [500, 300])
    scores = np.linspace(0, 1, 800)
    points = {
        wanted: working_point(labels, scores, np.ones(800), signal=1, classes=[0, 1], wanted=wanted)
        for wanted in (0.9, 0.95, 0.99)
    }
    assert {wanted: round(point.num_failing, 6) for wanted, point in points.items()} == {0.9: 30, 0.95: 15, 0.99: 3}
    assert [point.is_measurable for point in points.values()] == [True, True, False]


def test_what_cannot_be_a_working_point_is_said() -> None:
    labels, scores, ones = np.array([0, 1]), np.array([0.2, 0.8]), np.ones(2)
    for wanted in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="must be above 0 and at most 1"):
            working_point(labels, scores, ones, signal=1, classes=[0, 1], wanted=wanted)
    with pytest.raises(UndefinedMetricError, match="not finite"):
        working_point(labels, np.array([0.2, np.nan]), ones, signal=1, classes=[0, 1], wanted=0.9)
    with pytest.raises(UndefinedMetricError, match="there is no signal"):
        working_point(np.zeros(2, dtype=int), scores, ones, signal=1, classes=[0, 1], wanted=0.9)
    with pytest.raises(UndefinedMetricError, match="not defined"):
        working_point(labels, scores, ones, signal=1, classes=[0, 1, 2], wanted=0.9)


def test_the_purity_of_nothing_is_no_number() -> None:
    assert np.isnan(purity([0.0, 0.0], 0))
