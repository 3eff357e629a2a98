"""Conditions on branches that give events their classes."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray

from ingestion.expressions import LabelRule, exact

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
    _, num_held = LabelRule.of({condition: 1}).labels({"_label_by_0": FLAVOURS})
    assert num_held.tolist() == holds


#: Around the limits of float64 and int64; the last two are equal to the nearest float64.
LARGE: Final = [2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 6, 2**64 - 1]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("n % 10 < 5", [index % 10 < 5 for index in LARGE]),
        ("abs(n) % 10 in [7, 8]", [index % 10 in (7, 8) for index in LARGE]),
        ("n == 9223372036854775809", [0, 0, 0, 1, 0, 0]),
        ("n in [9007199254740993, 18446744073709551615]", [1, 0, 0, 0, 0, 1]),
        ("n - 1 < 9223372036854775807", [1, 1, 0, 0, 0, 0]),
        ("n * 1000 > 1e19", [0, 1, 1, 1, 1, 1]),
        ("n // 2 % 2 == 0", [index // 2 % 2 == 0 for index in LARGE]),
        ("sqrt(n) < 1e8", [1, 0, 0, 0, 0, 0]),
        ("n + small == 9007199254740994", [1, 0, 0, 0, 0, 0]),
        ("n > 9.2e18 and small == 1", [0, 1, 1, 1, 1, 1]),
    ],
)
def test_conditions_on_large_integers_are_exact(condition: str, holds: list[int]) -> None:
    rule = LabelRule.of({condition: 1})
    values = {"n": np.array(LARGE, np.uint64), "small": np.ones(len(LARGE), np.uint8)}
    columns = {name: exact(values[source.text]) for name, source in rule.sources.items()}
    assert rule.labels(columns)[1].tolist() == holds


@pytest.mark.parametrize("kind_name", ["?", "i1", "u1", "i2", "u2", "u4", "i8", "u8"])
def test_short_and_unsigned_integers_do_not_run_over(kind_name: str) -> None:
    columns = {"_label_by_0": exact(np.array([0, 1], kind_name))}
    assert LabelRule.of({"f - 1 < 0": 1}).labels(columns)[1].tolist() == [1, 0]
    assert LabelRule.of({"f + 300 > 300": 1}).labels(columns)[1].tolist() == [0, 1]


def test_products_of_integers_below_the_large_ones_fit() -> None:
    columns = {"_label_by_0": exact(np.array([2**31 - 1, 2**31, 2**31 + 1], np.int64))}
    rule = LabelRule.of({"f * f * 3 > 9223372036854775807": 1, "f * f <= 4611686018427387904": 0})
    assert rule.labels(columns)[1].tolist() == [2, 2, 1]


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
def test_other_words_than_a_condition_are_refused(condition: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"label_by: .* is no condition") as caught:
        LabelRule.of({condition: 1})
    assert reason in str(caught.value)


def test_each_branch_and_number_of_a_list_is_read_once() -> None:
    rule = LabelRule.of(
        {"Top.n[1] == 1": 1, "Top.n[1] == 0 and Event.n > 2": 0, "Top.n[1] < 0": None}
    )
    assert [source.text for source in rule.sources.values()] == ["Top.n[1]", "Event.n"]
    columns = {
        "_label_by_0": np.array([1.0, 0, 0, -1, np.nan]),
        "_label_by_1": np.array([3, 3, 2, 3, 3]),
    }
    labels, num_held = rule.labels(columns)
    assert num_held.tolist() == [1, 1, 0, 1, 0]
    assert labels[num_held == 1].tolist() == [1, 0, -1]


def test_no_condition_holds_for_a_number_that_is_not_finite() -> None:
    assert LabelRule.of({"f != 5": 1}).labels({"_label_by_0": np.array([np.nan, np.inf, 4.0])})[
        1
    ].tolist() == [0, 0, 1]


def holds_for(condition: str, **columns: NDArray[np.generic]) -> list[bool]:
    """For which events a condition holds."""
    rule = LabelRule.of({condition: 1})
    of_rule = {name: columns[source.text] for name, source in rule.sources.items()}
    return [bool(num) for num in rule.labels(of_rule)[1]]


EVENTS: Final = np.array([3, 123_457, 2**31 - 1, 2**31 - 19], np.int64)


@pytest.mark.parametrize("kind_name", ["i4", "u4", "i8", "u8"])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (
            "n * 6364136223846793005 % 10 < 5",
            [n * 6364136223846793005 % 10 < 5 for n in EVENTS.tolist()],
        ),
        ("n ** 5 % 10 < 5", [n**5 % 10 < 5 for n in EVENTS.tolist()]),
        ("n * n * n % 7 == 1", [n**3 % 7 == 1 for n in EVENTS.tolist()]),
        ("n + 9223372036854775807 > 0", [True] * 4),
        ("0 - n - 9223372036854775807 < 0", [True] * 4),
    ],
)
def test_powers_products_and_large_constants_are_exact(
    kind_name: str, condition: str, expected: list[bool]
) -> None:
    assert holds_for(condition, n=EVENTS.astype(kind_name)) == expected


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
@pytest.mark.parametrize("remaining", [[0], [2**40]])
def test_an_event_has_one_answer_whatever_is_read_with_it(
    condition: str, remaining: list[int]
) -> None:
    numbers, divisors = (
        np.array([0, 4, 7, -5, 2**30], np.int64),
        np.array([0, 0, 2, -1, 3], np.int64),
    )
    alone = [
        holds_for(condition, n=numbers[[at]], m=divisors[[at]])[0] for at in range(len(numbers))
    ]
    together = holds_for(condition, n=np.append(numbers, remaining), m=np.append(divisors, 1))
    assert together[: len(alone)] == alone


def test_a_quotient_by_zero_is_infinite_or_no_number() -> None:
    numbers = {"a": np.array([2**40, -1, 0]), "b": np.array([0, 0, 0])}
    assert holds_for("a / b > 1e308", **numbers) == [True, False, False]
    assert holds_for("a / b < -1e308", **numbers) == [False, True, False]


def test_a_condition_that_has_no_result_for_some_numbers_is_a_condition() -> None:
    assert holds_for("a // (b - 1) == 2", a=np.array([4]), b=np.array([3])) == [True]
