"""Column statistics: merging equals one pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import StandardScaler

from features.scaling import ColumnStatistics

blocks = st.lists(
    st.integers(0, 8).flatmap(lambda n: arrays(np.float64, (n, 3), elements=st.floats(-1e3, 1e3))),
    min_size=1,
    max_size=5,
)


@given(blocks)
def test_merging_blocks_in_any_grouping_equals_one_pass(rows: list[np.ndarray]) -> None:
    whole = ColumnStatistics.of(np.concatenate(rows))
    left = ColumnStatistics.of(rows[0])
    for block in rows[1:]:
        left = left.merge(ColumnStatistics.of(block))
    right = ColumnStatistics.of(rows[-1])
    for block in rows[-2::-1]:
        right = ColumnStatistics.of(block).merge(right)
    for merged in (left, right):
        assert merged.rows == whole.rows
        np.testing.assert_allclose(merged.mean, whole.mean, atol=1e-9)
        np.testing.assert_allclose(merged.m2, whole.m2, atol=1e-6)


def test_the_numbers_are_those_of_scikit_learn() -> None:
    rows = np.random.default_rng(1).normal(5, 3, (1000, 4))
    expected = StandardScaler().fit(rows)
    statistics = ColumnStatistics.of(rows)
    np.testing.assert_allclose(statistics.mean, expected.mean_)
    np.testing.assert_allclose(statistics.std, expected.scale_)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e6])
def test_a_constant_column_gets_a_std_of_one(value: float) -> None:
    assert ColumnStatistics.of(np.full((1000, 1), value)).std.tolist() == [1.0]


def test_no_rows_are_neutral() -> None:
    some = ColumnStatistics.of(np.arange(6.0).reshape(3, 2))
    none = ColumnStatistics.of(np.zeros((0, 2)))
    for merged in (some.merge(none), none.merge(some)):
        assert merged.to_json() == some.to_json()
    assert none.merge(none).rows == 0


def test_padding_counts_neither_in_the_mean_nor_in_the_standard_deviation() -> None:
    rng = np.random.default_rng(2)
    counts = np.array([3, 0, 7, 1])
    padded = np.zeros((4, 9, 2))
    for block, count in zip(padded, counts, strict=True):
        block[:count] = rng.normal(50, 3, (count, 2))
    rows = np.concatenate([block[:count] for block, count in zip(padded, counts, strict=True)])
    found = ColumnStatistics.of_padded(padded, counts)
    assert found.rows == 11
    np.testing.assert_allclose(found.mean, rows.mean(axis=0))
    np.testing.assert_allclose(found.std, rows.std(axis=0))
