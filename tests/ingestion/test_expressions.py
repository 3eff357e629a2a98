"""Conditions on branches that give events their classes."""

from __future__ import annotations

import numpy as np
import pytest

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
    ],
)
def test_conditions_are_those_of_python(condition: str, holds: list[int]) -> None:
    _, num_held = LabelRule.of({condition: 1}).labels({"_label_by_0": FLAVOURS})
    assert num_held.tolist() == holds


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
    rule = LabelRule.of({"Top.n[1] == 1": 1, "Top.n[1] == 0 and Event.n > 2": 0, "Top.n[1] < 0": None})
    assert [each.words for each in rule.sources.values()] == ["Top.n[1]", "Event.n"]
    columns = {"_label_by_0": np.array([1.0, 0, 0, -1, np.nan]), "_label_by_1": np.array([3, 3, 2, 3, 3])}
    labels, num_held = rule.labels(columns)
    assert num_held.tolist() == [1, 1, 0, 1, 0]
    assert labels[num_held == 1].tolist() == [1, 0, -1]


def test_no_condition_holds_for_a_number_that_is_not_finite() -> None:
    assert LabelRule.of({"f != 5": 1}).labels({"_label_by_0": np.array([np.nan, np.inf, 4.0])})[1].tolist() == [0, 0, 1]
