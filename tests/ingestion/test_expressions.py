"""Conditions on branches that give events their classes."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from ingestion.expressions import LabelRule

FLAVOURS = np.array([5, -5, 4, 15, 0])


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("abs(f) == 5", [1, 1, 0, 0, 0]),
        ("f in [4, 5]", [1, 0, 1, 0, 0]),
        ("0 < f < 6 and not f == 4", [1, 0, 0, 0, 0]),
        ("(f == 5) | (f == 15)", [1, 0, 0, 1, 0]),
        ("f % 2 == 1 and f // 5 == 3", [0, 0, 0, 1, 0]),
        ("f == 5 | f == 15", [1, 0, 0, 1, 0]),
        ("(f & 4) == 4 and f > 0", [1, 0, 1, 1, 0]),
        ("f not in [4, 5] and ~(f == 0)", [0, 1, 0, 1, 0]),
        ("sqrt(f * f) / 2 > 2.4", [1, 1, 0, 1, 0]),
        ("floor(f / 2) in [2, -3]", [1, 1, 1, 0, 0]),
        ("-f ** 2 + 1 < -20", [1, 1, 0, 1, 0]),
    ],
)
def test_conditions_are_those_of_python(condition: str, holds: list[int]) -> None:
    assert holds_for(condition, f=FLAVOURS) == [value == 1 for value in holds]


def holds_for(condition: str, **columns: NDArray[np.generic]) -> list[bool]:
    """For which events a condition holds."""
    rule = LabelRule.of({condition: 1})
    columns_of_rule = {name: columns[source.text] for name, source in rule.sources.items()}
    _, num_true = rule.labels(columns_of_rule)
    return (num_true == 1).tolist()


#: Around the limits of float64 and int64; the last two are equal to the nearest float64.
LARGE: Final = [2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 6, 2**64 - 1]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("n % 10 < 5", [1, 0, 0, 0, 1, 0]),
        ("n == 9223372036854775809", [0, 0, 0, 1, 0, 0]),
        ("n in [9007199254740993, 18446744073709551615]", [1, 0, 0, 0, 0, 1]),
        ("n - 1 < 9223372036854775807", [1, 1, 0, 0, 0, 0]),
        ("n * 1000 > 1e19", [0, 1, 1, 1, 1, 1]),
        ("n * 3 % 10 == 9", [1, 0, 0, 0, 0, 0]),
        ("n ** 5 % 10 == 8", [0, 0, 1, 0, 0, 0]),
        ("sqrt(n) < 1e8", [1, 0, 0, 0, 0, 0]),
        ("n + small == 9007199254740994", [1, 0, 0, 0, 0, 0]),
        ("n > 9.2e18 and small == 1", [0, 1, 1, 1, 1, 1]),
        ("small + 9223372036854775807 > 0", [1, 1, 1, 1, 1, 1]),
        ("0 - small - 9223372036854775808 < 0", [1, 1, 1, 1, 1, 1]),
    ],
)
def test_integers_are_exact_at_any_size(condition: str, holds: list[int]) -> None:
    large, small = np.array(LARGE, np.uint64), np.ones(len(LARGE), np.uint8)
    assert holds_for(condition, n=large, small=small) == [value == 1 for value in holds]


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "u4", "i8", "u8"])
def test_short_and_unsigned_integers_do_not_overflow(dtype: str) -> None:
    numbers = np.array([0, 1], dtype)
    assert holds_for("f - 1 < 0", f=numbers) == [True, False]
    assert holds_for("f + 300 > 300", f=numbers) == [False, True]


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("f", "neither true nor false"),
        ("3 == 3", "neither true nor false"),
        ("f ==", "invalid syntax"),
        ("f == 'b'", "'b' is no number"),
        ("maximum(f, 3) == 4", "not a supported function"),
        ("__import__('os').system('true') == 0", "is no condition on branches"),
        ("[f for f in g]", "is no condition on branches"),
        ("f = 5", "invalid syntax"),
        ("(f > 3) + (f > 5) == 1", "a comparison is no number"),
        ("sin(1).item() < f", "no function of numbers"),
    ],
)
def test_other_texts_than_conditions_are_refused(condition: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"label_by: .* is no condition") as caught:
        LabelRule.of({condition: 1})
    assert reason in str(caught.value)


def test_each_branch_and_number_of_a_list_is_read_once() -> None:
    rule = LabelRule.of(
        {"Top.n[1] == 1": 1, "Top.n[1] == 0 and Event.n > 2": 0, "Top.n[1] < 0": None}
    )
    columns = {
        "_label_by_0": np.array([1.0, 0, 0, -1, np.nan]),
        "_label_by_1": np.array([3, 3, 2, 3, 3]),
    }

    labels, num_true = rule.labels(columns)

    assert [source.text for source in rule.sources.values()] == ["Top.n[1]", "Event.n"]
    assert num_true.tolist() == [1, 1, 0, 1, 0]
    assert labels[num_true == 1].tolist() == [1, 0, -1]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("condition", "opposite"),
    [
        ("x > 0.1", "x <= 1 / 10"),
        ("2 * x > 0.2", "x <= 0.1"),
        ("abs(x) > 0.1", "x + 0 <= 0.1"),
        ("-x < -0.1", "not +x > 0.1"),
        ("sqrt(x * x) > 0.1", "x <= 0.1"),
        ("x in [0.1, 0.2]", "x * 1 not in [1 / 10, 2 / 10]"),
    ],
)
def test_exactly_one_of_two_opposite_conditions_holds(
    dtype: str, condition: str, opposite: str
) -> None:
    x = np.array([0.1, 0.2, 0.3], dtype)

    holds = np.array(holds_for(condition, x=x))

    assert (holds != np.array(holds_for(opposite, x=x))).all()


def test_short_reals_are_compared_as_they_are_stored() -> None:
    """The float32 nearest to 0.1 is 0.100000001490116."""
    x = np.array([0.1], np.float32)

    assert holds_for("0.1 < x < 0.1000000015", x=x) == [True]
    assert holds_for("x == 0.1", x=x) == [False]


def test_no_condition_holds_for_a_number_that_is_not_finite() -> None:
    assert holds_for("f != 5", f=np.array([np.nan, np.inf, 4.0])) == [False, False, True]


@pytest.mark.parametrize(
    "condition",
    [
        "n / m > 1e300",
        "n ** 0.5 < 40000",
        "n ** -1 < 1e-8",
        "2 ** m > 1",
        "n * 0.1 == n / 10",
        "-n / 3 < 0 and n > 2",
    ],
)
@pytest.mark.parametrize("further_number", [0, 2**40])
def test_the_result_for_an_event_does_not_depend_on_other_events(
    condition: str, further_number: int
) -> None:
    numbers = np.array([0, 4, 7, -5, 2**30], np.int64)
    divisors = np.array([0, 0, 2, -1, 3], np.int64)
    separately = []
    for index in range(len(numbers)):
        event = slice(index, index + 1)
        separately += holds_for(condition, n=numbers[event], m=divisors[event])

    together = holds_for(condition, n=np.append(numbers, further_number), m=np.append(divisors, 1))

    assert together[:-1] == separately


def test_a_quotient_by_zero_is_infinite_or_no_number() -> None:
    numbers = {"a": np.array([2**40, -1, 0]), "b": np.array([0, 0, 0])}
    assert holds_for("a / b > 1e308", **numbers) == [True, False, False]
    assert holds_for("a / b < -1e308", **numbers) == [False, True, False]


def test_a_condition_that_has_no_result_for_some_numbers_is_a_condition() -> None:
    assert holds_for("a // (b - 1) == 2", a=np.array([4]), b=np.array([3])) == [True]
