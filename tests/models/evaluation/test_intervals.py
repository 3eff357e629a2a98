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
    actual = efficiency(np.arange(total) < passed, np.ones(total))
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
    assert efficiency(passing, np.full(4, 7.0)) == pytest.approx(efficiency(passing, np.ones(4)))


def test_uneven_weights_widen_the_interval() -> None:
    passing = np.tile([True, False], 50)
    even = efficiency(passing, np.ones(100))
    uneven = efficiency(passing, np.repeat([0.1, 1.9], 50))
    assert even.value == pytest.approx(uneven.value) == 0.5
    assert uneven.high - uneven.low > even.high - even.low


def test_negative_weights_may_leave_the_usual_range_and_the_interval_does_not() -> None:
    actual = efficiency(np.array([True, True, False]), np.array([1.0, 1.0, -0.5]))
    assert actual.value == pytest.approx(2 / 1.5)
    assert 0 <= actual.low <= actual.high == 1


def test_many_events_have_an_interval_that_covers_what_it_promises_on_average() -> None:
    total = 200
    intervals = [
        efficiency(np.arange(total) < passed, np.ones(total)) for passed in range(total + 1)
    ]
    covered = [
        sum(
            binom.pmf(passed, total, true)
            for passed, interval in enumerate(intervals)
            if interval.low <= true <= interval.high
        )
        for true in np.linspace(0.1, 0.9, 41)
    ]
    assert np.mean(covered) == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize("weights", [[0.1, 0.2, -0.3], [0.7, 0.1, -0.8], [2.6, -1.3, -1.3]])
def test_weights_that_cancel_but_for_rounding_add_up_to_nothing(weights: list[float]) -> None:
    assert not WeightSums.of(np.array(weights)).is_positive
    actual = efficiency_against(
        np.ones(3), np.array([True, False, True]), np.array(weights), [0, 10, 20]
    )
    assert actual == [None, None]
    assert calibration(np.array([True, False, True]), np.full(3, 0.5), np.array(weights)) == []


@pytest.mark.parametrize("value", [1 - 1e-15, 1.0, 1 + 1e-15])
def test_a_share_of_all_but_for_rounding_is_exactly_that(value: float) -> None:
    share = Efficiency(value, 0.943, 1 + 1e-15).as_json()
    assert share == {"value": 1.0, "low": 0.943, "high": 1.0, "limit": "lower"}
    assert Efficiency(value, 0.943, 1.1).as_json(most=math.inf) == {
        "value": value,
        "low": 0.943,
        "high": 1.1,
    }


@pytest.mark.parametrize("most", [1.0, math.inf])
def test_small_shares_and_rates_are_not_0(most: float) -> None:
    numbers = {"value": 2e-10, "low": 1e-10, "high": 4e-10}

    assert Efficiency(**numbers).as_json(most=most) == numbers


@pytest.mark.parametrize("scale", [1.0, 1e-15])
def test_weights_that_cancel_on_one_side_leave_all_or_nothing(scale: float) -> None:
    weights = scale * np.array([0.1, 0.2, -0.3, 5.0])
    passing = np.array([True, True, True, False])

    assert efficiency(passing, weights).value == 0
    assert efficiency(~passing, weights).value == 1


def test_one_light_event_of_many_passes() -> None:
    weights = np.append(np.ones(1000), 1e-8)

    share = efficiency(weights < 1, weights).as_json()

    assert share["value"] == pytest.approx(1e-11)
    assert "limit" not in share
