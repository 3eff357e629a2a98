"""The time of a search on several slots: between the best possible one and Graham's bound."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.gridsearch.results import makespan, speed_ups

SECONDS = st.lists(st.integers(1, 20).map(float), min_size=1, max_size=6)


def best_possible(seconds: list[float], slots: int) -> float:
    """Over all ways to give each training a slot."""
    return min(
        max(sum(each for each, chosen in zip(seconds, way, strict=True) if chosen == slot) for slot in range(slots))
        for way in itertools.product(range(slots), repeat=len(seconds))
    )


@given(SECONDS, st.integers(1, 3))
def test_it_is_at_most_by_grahams_factor_longer_than_the_best(seconds: list[float], slots: int) -> None:
    best = best_possible(seconds, slots)
    found = makespan(seconds, slots)
    assert best <= found <= best * (4 / 3 - 1 / (3 * slots)) * (1 + 1e-12)


@given(SECONDS, st.integers(1, 16))
def test_nothing_is_faster_than_its_slots_or_its_longest_training(seconds: list[float], most_slots: int) -> None:
    found = speed_ups(seconds, most_slots)
    assert list(found) == [slots for slots in (1, 2, 4, 8, 16) if slots <= most_slots]
    assert found[1] == pytest.approx(1.0)
    for slots, factor in found.items():
        assert factor * (1 + 1e-12) >= 1
        assert factor <= min(slots, len(seconds), sum(seconds) / max(seconds)) * (1 + 1e-12)
