"""The watchdog ends a run when no rank makes progress, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.loop import watchdog as watchdog_module
from training.loop.metering import Meter
from training.loop.watchdog import Watchdog

LIMIT_SECONDS = 100.0


class Clock:
    """A clock that tests set; stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Rank:
    """A meter with its watchdog, whose thread does not run."""

    def __init__(self, clock: Clock, folder: Path, rank: int) -> None:
        self.meter = Meter(clock.monotonic)
        self.watchdog = Watchdog(
            folder / "stalls", folder / "signs", rank=rank, seconds=LIMIT_SECONDS
        )

    def is_standstill(self) -> bool:
        return self.watchdog._is_standstill(self.meter)

    def is_standstill_within(self, clock: Clock, seconds: float) -> bool:
        """Look each second of this time; whether one of the looks finds a standstill."""
        looks = []
        for _ in range(round(seconds)):
            clock.now += 1.0
            looks.append(self.is_standstill())
        return any(looks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog_module, "time", clock)
    return clock


def test_a_rank_that_waits_for_a_slower_one_is_no_standstill(clock: Clock, tmp_path: Path) -> None:
    fast, slow = Rank(clock, tmp_path, 0), Rank(clock, tmp_path, 1)

    for second in range(round(10 * LIMIT_SECONDS)):
        clock.now += 1.0
        if second % 80 == 0:
            slow.meter.lap("compute")

        assert not slow.is_standstill(), f"after {second} s"
        assert not fast.is_standstill(), f"after {second} s"

    assert fast.meter.seconds_without_sign == pytest.approx(10 * LIMIT_SECONDS)


def test_the_limit_counts_from_the_begin_of_watching(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    rank = Rank(clock, tmp_path, 0)

    clock.now += 2 * LIMIT_SECONDS
    rank.watchdog.watch(rank.meter)
    assert not rank.is_standstill()

    assert rank.is_standstill_within(clock, 1.5 * LIMIT_SECONDS)


def test_a_disk_that_fails_does_not_end_the_watchdog(clock: Clock, tmp_path: Path) -> None:
    rank = Rank(clock, tmp_path, 0)
    # A file stands where the folder of the signs should be.
    (tmp_path / "signs").touch()
    assert not rank.is_standstill()

    assert rank.is_standstill_within(clock, 1.5 * LIMIT_SECONDS)


def test_a_job_that_was_suspended_gets_the_whole_limit_again(clock: Clock, tmp_path: Path) -> None:
    ranks = [Rank(clock, tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        assert not rank.is_standstill()

    # The watchdogs wake up before the ranks have made a step.
    clock.now += 50 * LIMIT_SECONDS
    for rank in ranks:
        assert not rank.is_standstill()
    clock.now += 1.0
    for rank in ranks:
        assert not rank.is_standstill()

    for rank in ranks:
        rank.meter.lap("compute")
    assert not ranks[0].is_standstill_within(clock, 0.9 * LIMIT_SECONDS)
    assert ranks[0].is_standstill_within(clock, 0.9 * LIMIT_SECONDS)


@pytest.mark.parametrize("stopped_seconds", [20.0, 0.4 * LIMIT_SECONDS, 4 * LIMIT_SECONDS])
def test_stops_again_and_again_hardly_count(
    clock: Clock, tmp_path: Path, stopped_seconds: float
) -> None:
    rank = Rank(clock, tmp_path, 0)

    # A batch system that runs two jobs in turn: without a sign, 80 s of running are no standstill.
    for _ in range(4):
        assert not rank.is_standstill_within(clock, 20.0)
        clock.now += stopped_seconds
        assert not rank.is_standstill()

    assert rank.is_standstill_within(clock, 0.4 * LIMIT_SECONDS)


def test_steps_between_stops_are_progress(clock: Clock, tmp_path: Path) -> None:
    rank = Rank(clock, tmp_path, 0)

    for _ in range(30):
        assert not rank.is_standstill_within(clock, 5.0)
        rank.meter.lap("compute")
        clock.now += 4 * LIMIT_SECONDS
        assert not rank.is_standstill()


def test_all_ranks_see_a_standstill(clock: Clock, tmp_path: Path) -> None:
    ranks = [Rank(clock, tmp_path, rank) for rank in range(3)]
    seconds_until_seen: dict[Rank, float] = {}

    for _ in range(round(2 * LIMIT_SECONDS)):
        clock.now += 1.0
        for rank in ranks:
            if rank.is_standstill():
                seconds_until_seen.setdefault(rank, clock.now - 1000.0)

    assert seconds_until_seen.keys() == set(ranks)
    for seconds in seconds_until_seen.values():
        assert LIMIT_SECONDS <= seconds <= 1.5 * LIMIT_SECONDS
