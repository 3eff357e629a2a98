"""Honest clocks on real ranks: known waits of each kind are found, and all kinds add up to wall time."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import IMPLEMENTATIONS, results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

NAP, TIMES = 0.1, 8


def test_every_kind_of_waiting_is_found_and_nothing_is_booked_twice(tmp_path: Path) -> None:
    early, late = results_of(IMPLEMENTATIONS[0], 2, "clocks:book", tmp_path / "ranks", nap=NAP, times=TIMES)
    for meeting in early:
        for kinds in (early[meeting], late[meeting]):
            wall = kinds.pop("on another clock")
            assert sum(kinds.values()) == pytest.approx(wall, rel=0.02), meeting
    for meeting in ("barrier", "all-reduce", "neighbours"):
        # What one slept, the other waited. On a busy machine the meeting itself takes time, which is no waiting.
        slept, met = late[meeting]["compute"], late[meeting]["communicate"] + late[meeting]["wait"]
        assert slept >= NAP * TIMES
        assert early[meeting]["wait"] == pytest.approx(slept, abs=0.1 * slept + met), meeting
        assert met < 0.5 * slept, meeting
    for kinds in (early["nobody"], late["nobody"]):
        assert kinds.get("wait", 0.0) == 0
        assert kinds["compute"] >= NAP * TIMES
    # The nap under the locks is no waiting of who holds them, and but for the tenth before it of who wants them.
    assert late["lock"]["communicate"] >= NAP * TIMES
    assert early["lock"]["wait"] == pytest.approx(0.9 * late["lock"]["communicate"], rel=0.15)
