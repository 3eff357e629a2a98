"""Clocks on real ranks: known waits of each kind are counted, and all kinds add up to wall time."""

from __future__ import annotations

from typing import Any

import pytest
from rank_programs import results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

NAP, REPEATS = 0.2, 6
NAP_SECONDS = NAP * REPEATS
#: Begin and end of each meeting [s].
Spans = list[list[float]]


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """The clocks of the rank that comes early to each kind of meeting, and of the late one."""
    folder = tmp_path_factory.mktemp("ranks")
    return results_of(2, "clocks:book", folder, seconds=150, nap=NAP, times=REPEATS)


def total_seconds(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def overlap_seconds(spans: Spans, other_spans: Spans) -> float:
    """Seconds of spans that lie in the other span of the same number."""
    total = 0.0
    for (begin, end), (other_begin, other_end) in zip(spans, other_spans, strict=True):
        total += max(0.0, min(end, other_end) - max(begin, other_begin))
    return total


def seconds_ahead(early_spans: Spans, late_spans: Spans) -> float:
    """Seconds by which early spans begin before late ones."""
    total = 0.0
    for (early_begin, _), (late_begin, _) in zip(early_spans, late_spans, strict=True):
        total += max(0.0, late_begin - early_begin)
    return total


def test_the_seconds_of_all_kinds_add_up_to_the_wall_time(
    clocks: list[dict[str, dict[str, Any]]],
) -> None:
    for clock in clocks:
        for meeting, booked in clock.items():
            shortest, longest = booked["wall"]
            assert 0.98 * shortest <= sum(booked["kinds"].values()) <= 1.02 * longest, meeting


@pytest.mark.parametrize("meeting", ["barrier", "all-reduce", "neighbours"])
def test_the_early_rank_waits_for_the_late_one_which_computes(
    clocks: list[dict[str, dict[str, Any]]], meeting: str
) -> None:
    early = clocks[0][meeting]
    late = clocks[1][meeting]

    nap_seconds = late["kinds"]["compute"]
    wait_seconds = early["kinds"]["wait"]
    ahead = seconds_ahead(early["spans"], late["spans"])

    assert nap_seconds >= NAP_SECONDS
    assert ahead > 0.3 * nap_seconds
    # The early rank waits until the late one is there, and at most until both have met. The time
    # that the late one needs to meet is no waiting; it is long on a busy machine.
    shortest_wait = 0.9 * ahead - total_seconds(late["spans"])
    assert shortest_wait <= wait_seconds <= total_seconds(early["spans"])


def test_who_meets_nobody_does_not_wait(clocks: list[dict[str, dict[str, Any]]]) -> None:
    for clock in clocks:
        kinds = clock["nobody"]["kinds"]
        assert kinds.get("wait", 0.0) == 0
        assert kinds["compute"] >= NAP_SECONDS


def test_a_slow_answer_of_a_counter_is_communication(
    clocks: list[dict[str, dict[str, Any]]],
) -> None:
    """A counter answers late because of the network, not of other ranks."""
    for clock in clocks:
        assert clock["count"]["kinds"].get("communicate", 0.0) >= NAP_SECONDS


@pytest.mark.parametrize(
    ("meeting", "kind_of_holder"), [("lock", "compute"), ("push", "communicate")]
)
def test_a_nap_under_a_lock_is_waiting_only_of_the_rank_that_wants_the_lock(
    clocks: list[dict[str, dict[str, Any]]], meeting: str, kind_of_holder: str
) -> None:
    wanting = clocks[0][meeting]
    holding = clocks[1][meeting]

    locked_seconds = overlap_seconds(wanting["spans"], holding["spans"])
    wait_seconds = wanting["kinds"]["wait"]

    assert holding["kinds"][kind_of_holder] >= NAP_SECONDS
    assert locked_seconds > 0.3 * NAP_SECONDS
    # A rank that gets what it waits for may then wait for a core, which is no waiting for others.
    shortest_wait = 0.9 * locked_seconds - wanting["kinds"]["communicate"]
    assert shortest_wait <= wait_seconds <= total_seconds(wanting["spans"])
    assert wait_seconds > 0.3 * locked_seconds
