"""Numbers with errors have as many digits as the error needs."""

from __future__ import annotations

import math

import pytest

from models.evaluation.rounding import ON_PAGE, inverse_with_interval, with_error, with_interval


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.99942, 0.00021, "0.99942 ± 0.00021"),
        (0.9312, 0.0235, "0.931 ± 0.024"),
        (0.9312, 0.00499, "0.931 ± 0.005"),
        (0.9312, 0.00961, "0.931 ± 0.010"),
        (123_456.0, 3_210.0, "123,500 ± 3,200"),
        (-0.00001, 0.02, "0.000 ± 0.020"),
        (1.0, 0.0, "1 ± 0"),
        (0.5, math.nan, "0.5 (error not measurable)"),
        (math.nan, 0.1, "not measurable"),
    ],
)
def test_a_number_has_as_many_digits_as_its_error_needs(
    value: float, error: float, text: str
) -> None:
    assert with_error(value, error) == text


@pytest.mark.parametrize(
    ("low", "value", "high", "text"),
    [
        (0.80, 1.0, 1.0, "> 80 %"),
        (0.0123, 1.0, 1.0, "> 1.2 %"),
        (0.99876, 1.0, 1.0, "> 99.88 %"),
        (0.0, 0.0, 0.0577, "< 5.8 %"),
        # Negative weights may leave nothing to say.
        (0.0, 0.0, 0.0, "not measurable"),
        (0.0, 1.0, 1.0, "not measurable"),
        (1.0, 1.0, 1.0, "100 %"),
        (0.11, 0.12, 0.14, "12.0 % (+2.0 \N{MINUS SIGN}1.0)"),
        (0.11, 0.12, 0.13, "12.0 % (± 1.0)"),
    ],
)
def test_a_share_at_either_end_of_its_range_is_a_limit(
    low: float, value: float, high: float, text: str
) -> None:
    interval = {"value": value, "low": low, "high": high}
    assert with_interval(interval, scale=100, symbol=" %", most=1.0, form=ON_PAGE) == text


def test_a_rate_above_1_is_no_limit() -> None:
    assert with_interval({"value": 20.0, "low": 18.0, "high": 22.0}) == "20.0 ± 2.0"


def test_an_infinite_rejection_is_a_lower_limit() -> None:
    assert inverse_with_interval({"value": 0.0, "low": 0.0, "high": 0.004}) == "> 250"
    assert inverse_with_interval({"value": 0.01, "low": 0.0, "high": 0.02}) == "100 (50 to ∞)"
    assert inverse_with_interval({"value": 0.01, "low": None, "high": None}) == "not measurable"


def test_an_infinite_upper_end_is_a_lower_limit() -> None:
    for infinite in (None, math.inf):
        assert (
            with_interval({"value": 3.2, "low": 2.5, "high": infinite, "limit": "lower"}) == "> 2.5"
        )


def test_what_has_no_value_may_have_a_lower_limit() -> None:
    assert with_interval({"value": None, "low": 27.31, "high": None, "limit": "lower"}) == "> 27"
    assert (
        with_interval({"value": None, "low": None, "high": None, "limit": "lower"})
        == "not measurable"
    )
    assert with_interval({"value": None, "low": 27.31, "high": None}) == "not measurable"
