"""The watchdog ends a run when no rank makes progress, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.loop import watchdog as module
from training.loop.metering import Meter
from training.loop.watchdog import Watchdog

LIMIT = 100.0


class Clock:
    """Seconds that pass when told to, for meters and watchdogs alike."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """As `time.monotonic`."""
        return self.now


class Rank:
    """A meter and its watchdog, which is asked and does not run."""

    def __init__(self, clock: Clock, folder: Path, rank: int) -> None:
        self.meter = Meter(clock.monotonic)
        self._watchdog = Watchdog(folder / "stalls", folder / "signs", rank=rank, seconds=LIMIT)

    def watch(self) -> None:
        """Begin to watch."""
        self._watchdog.watch(self.meter)

    def is_standstill(self) -> bool:
        """What the watchdog finds."""
        return self._watchdog._is_standstill(self.meter)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def test_a_rank_that_waits_for_a_slower_one_is_no_standstill(clock: Clock, tmp_path: Path) -> None:
    fast, slow = (Rank(clock, tmp_path, rank) for rank in range(2))
    for tick in range(100):
        clock.now += LIMIT / 10
        if tick % 8 == 0:
            slow.meter.lap("compute")
        found = [rank.is_standstill() for rank in (slow, fast)]
        assert found == [False, False], f"after {tick} looks"
    assert fast.meter.seconds_without_sign == pytest.approx(10 * LIMIT)


def test_a_start_longer_than_the_limit_ended_the_run_at_the_first_look(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    rank = Rank(clock, tmp_path, 0)
    clock.now += 2 * LIMIT
    rank.watch()
    assert not rank.is_standstill()
    clock.now += LIMIT
    assert rank.is_standstill()


def test_a_disk_that_failed_once_ended_the_watchdog(clock: Clock, tmp_path: Path) -> None:
    rank = Rank(clock, tmp_path, 0)
    (tmp_path / "signs").touch()
    assert not rank.is_standstill()
    clock.now += LIMIT
    assert rank.is_standstill()


def test_all_see_a_standstill_once_nobody_gets_on(clock: Clock, tmp_path: Path) -> None:
    ranks = [Rank(clock, tmp_path, rank) for rank in range(3)]
    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for _ in range(20):
        clock.now += LIMIT / 10
        for number, rank in enumerate(ranks):
            if rank.is_standstill():
                seen[number].append(clock.now - 1000.0)
    assert all(LIMIT <= times[0] <= 1.5 * LIMIT for times in seen.values())
