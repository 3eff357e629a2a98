"""Clocks on real ranks: known waits of each kind are counted, and all kinds add up to wall time."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

NAP, TIMES = 0.2, 6


def together(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """Seconds of our spans that lie in theirs of the same number."""
    pairs = zip(ours, theirs, strict=True)
    return sum(
        max(0.0, min(current[1], reference[1]) - max(current[0], reference[0]))
        for current, reference in pairs
    )


def test_every_kind_of_waiting_is_found_and_nothing_is_booked_twice(tmp_path: Path) -> None:
    early, late = results_of(2, "clocks:book", tmp_path / "ranks", nap=NAP, times=TIMES)
    for meeting in early:
        for booked in (early[meeting], late[meeting]):
            least, most = booked["wall"]
            assert 0.98 * least <= sum(booked["kinds"].values()) <= 1.02 * most, meeting
    for meeting in ("barrier", "all-reduce", "neighbours"):
        slept, waited = late[meeting]["kinds"]["compute"], early[meeting]["kinds"]["wait"]
        assert slept >= NAP * TIMES
        # Who comes early waits until the other one is there, and at most until both have met. What
        # the late one needs to meet is no waiting; it is long on a busy machine.
        spans = [early[meeting]["spans"], late[meeting]["spans"]]
        alone = sum(
            max(0.0, reference[0] - current[0]) for current, reference in zip(*spans, strict=True)
        )
        longest, met = (sum(end - begun for begun, end in span) for span in spans)
        assert alone > 0.3 * slept
        assert 0.9 * alone - met <= waited <= longest, meeting
    for kinds in (early["nobody"]["kinds"], late["nobody"]["kinds"]):
        assert kinds.get("wait", 0.0) == 0
        assert kinds["compute"] >= NAP * TIMES
    # A counter answers late because of the network, not of others.
    for kinds in (early["count"]["kinds"], late["count"]["kinds"]):
        assert kinds.get("communicate", 0.0) >= NAP * TIMES
    # The nap under the locks is no waiting of who holds them, but of who wants them meanwhile.
    for meeting in ("lock", "push"):
        holding, wanting = late[meeting], early[meeting]
        kind_name = "communicate" if meeting == "push" else "compute"
        assert holding["kinds"][kind_name] >= NAP * TIMES, meeting
        pair = together(wanting["spans"], holding["spans"])
        assert pair > 0.3 * NAP * TIMES, meeting
        longest = sum(end - begun for begun, end in wanting["spans"])
        # A rank that gets what it waits for may then wait for a core, which is no waiting for
        # others.
        waited, remainder = wanting["kinds"]["wait"], wanting["kinds"]["communicate"]
        assert 0.9 * pair - remainder <= waited <= longest, meeting
        assert waited > 0.3 * pair, meeting
