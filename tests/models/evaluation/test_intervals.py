"""Efficiencies and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from models.evaluation.calibration import calibration
from models.evaluation.curves import efficiency_against
from models.evaluation.intervals import ONE_SIGMA, Efficiency, WeightSums, efficiency


@pytest.mark.parametrize(("passed", "total"), [(0, 5), (1, 5), (3, 7), (9, 1000), (5, 5)])
def test_the_interval_is_where_the_count_becomes_unlikely(passed: int, total: int) -> None:
    passing = np.arange(total) < passed

    actual = efficiency(passing, np.ones(total))

    assert actual.value == passed / total
    # By definition: at the ends, as many or more (as few or fewer) have a probability of 16 %.
    if passed:
        assert binom.sf(passed - 1, total, actual.low) == pytest.approx(ONE_SIGMA / 2)
    else:
        assert actual.low == 0
    if passed < total:
        assert binom.cdf(passed, total, actual.high) == pytest.approx(ONE_SIGMA / 2)
    else:
        assert actual.high == 1


def test_equal_weights_of_any_size_count_as_none() -> None:
    passing = np.array([True, False, True, True])

    with_weights = efficiency(passing, np.full(4, 7.0))

    without_weights = efficiency(passing, np.ones(4))
    assert with_weights == pytest.approx(without_weights)


def test_uneven_weights_widen_the_interval() -> None:
    passing = np.tile([True, False], 50)
    uneven_weights = np.repeat([0.1, 1.9], 50)

    even = efficiency(passing, np.ones(100))
    uneven = efficiency(passing, uneven_weights)

    even_width = even.high - even.low
    uneven_width = uneven.high - uneven.low
    assert even.value == 0.5
    assert uneven.value == pytest.approx(0.5)
    assert uneven_width > even_width


def test_negative_weights_may_leave_the_usual_range_and_the_interval_does_not() -> None:
    passing = np.array([True, True, False])
    weights = np.array([1.0, 1.0, -0.5])

    actual = efficiency(passing, weights)

    assert actual.value == pytest.approx(2 / 1.5)
    assert 0 <= actual.low <= actual.high == 1


def test_many_events_have_an_interval_that_covers_what_it_promises_on_average() -> None:
    total = 200
    counts = np.arange(total + 1)
    weights = np.ones(total)

    intervals = [efficiency(np.arange(total) < passed, weights) for passed in counts]

    lows = np.array([interval.low for interval in intervals])
    highs = np.array([interval.high for interval in intervals])
    coverages = []
    for true_share in np.linspace(0.1, 0.9, 41):
        covers = (lows <= true_share) & (true_share <= highs)
        coverages.append(binom.pmf(counts[covers], total, true_share).sum())
    assert np.mean(coverages) == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize("weights", [[0.1, 0.2, -0.3], [0.7, 0.1, -0.8], [2.6, -1.3, -1.3]])
def test_weights_that_cancel_but_for_rounding_add_up_to_nothing(weights: list[float]) -> None:
    cancelling = np.array(weights)
    passing = np.array([True, False, True])

    sums = WeightSums.of(cancelling)
    efficiencies = efficiency_against(np.ones(3), passing, cancelling, [0, 10, 20])
    bins = calibration(passing, np.full(3, 0.5), cancelling)

    assert not sums.is_positive
    assert efficiencies == [None, None]
    assert bins == []


@pytest.mark.parametrize("value", [1 - 1e-15, 1.0, 1 + 1e-15])
def test_a_share_of_all_but_for_rounding_is_exactly_that(value: float) -> None:
    share = Efficiency(value, 0.943, 1 + 1e-15).as_json()
    rate = Efficiency(value, 0.943, 1.1).as_json(most=math.inf)

    assert share == {"value": 1.0, "low": 0.943, "high": 1.0, "limit": "lower"}
    assert rate == {"value": value, "low": 0.943, "high": 1.1}


@pytest.mark.parametrize("most", [1.0, math.inf])
def test_small_shares_and_rates_are_not_0(most: float) -> None:
    numbers = {"value": 2e-10, "low": 1e-10, "high": 4e-10}

    assert Efficiency(**numbers).as_json(most=most) == numbers


@pytest.mark.parametrize("scale", [1.0, 1e-15])
def test_weights_that_cancel_on_one_side_leave_all_or_nothing(scale: float) -> None:
    weights = scale * np.array([0.1, 0.2, -0.3, 5.0])
    passing = np.array([True, True, True, False])

    share_passing = efficiency(passing, weights)
    share_failing = efficiency(~passing, weights)

    assert share_passing.value == 0
    assert share_failing.value == 1


def test_one_light_event_of_many_passes() -> None:
    weights = np.append(np.ones(1000), 1e-8)

    share = efficiency(weights < 1, weights).as_json()

    assert share["value"] == pytest.approx(1e-11)
    assert "limit" not in share
