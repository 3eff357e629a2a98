"""Detects a run without progress, and reports what each rank was doing."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hep_core.atomic_files import new_file
from training.loop.metering import Meter

#: Time for the other ranks to write their reports before this one ends the job [s].
_GRACE_SECONDS: Final = 3.0
#: Longest time between two calls of `RunningTime.seconds` that counts in full [s].
_MOST_SECONDS: Final = 3.0


class StallReport(NamedTuple):
    """The file of a rank about a standstill."""

    doing: str
    seconds: float
    """Time without progress of this rank."""
    stack: list[str]
    """Lines of the stack of its main thread."""


class RunningTime:
    """The time in which this process ran [s], for limits of other work.

    A process that was suspended, by a batch system or with SIGSTOP, finds that much time has passed
    in which nothing could happen. So a long time between two calls counts as 3 s, or as half of a
    shorter limit.

    `limit_seconds`: the limit of the other work [s].
    """

    def __init__(self, limit_seconds: float) -> None:
        self._most_seconds = min(_MOST_SECONDS, limit_seconds / 2)
        self._last_call = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the time since this object was made; call it each second, or more often."""
        now = time.monotonic()
        self._seconds += min(now - self._last_call, self._most_seconds)
        self._last_call = now
        return self._seconds


class Watchdog:
    """A thread that checks a worker's meter; if no rank makes progress for too long, the job ends.

    A rank that waits for slower ones records nothing either. So every rank with new records touches
    a file, and the run is at a standstill only if no file changes. Then each rank reports what it
    was doing, for how long, and its stack, in `<folder>/rank-<n>.json`. Of each time in which this
    process was suspended, 3 s count at most.

    `folder`: folder of the reports. `signs`: folder of the files that ranks touch. All ranks share
    both. `seconds`: time without progress that ends the run [s].
    """

    def __init__(self, folder: Path, signs: Path, *, rank: int, seconds: float) -> None:
        self.rank = rank
        self._folder = folder
        self._signs = signs
        self._seconds = seconds
        self._last_signs: dict[str, int] = {}
        """Time of change of each rank's file, at the last look [ns]."""
        self._running = RunningTime(seconds)
        self._last_look = -math.inf
        """Running time of the last look [s]."""
        self._last_change = 0.0
        """Running time of the look that last found progress of any rank [s]."""
        self._last_sign = -math.inf
        """Time of the last sign of this rank's meter that a look has found [s]."""
        self._main_thread = threading.get_ident()
        self._meter: Meter
        self._thread = threading.Thread(target=self._watch_until_stall, daemon=True)

    def watch(self, meter: Meter) -> None:
        """Check this meter from now on; earlier time does not count."""
        meter.alive()
        self._meter = meter
        if not self._thread.is_alive():
            self._thread.start()

    def _watch_until_stall(self) -> None:
        """Watch until a standstill, then report and end this process; runs in the thread.

        The folder of the reports appears as soon as any rank finds a standstill. All ranks wait for
        it, and report too.
        """
        while not self._folder.exists() and not self._is_standstill(self._meter):
            time.sleep(min(self._seconds / 4, 1.0))
        self._report(self._meter)
        # The other ranks see the folder and report too; then this rank ends the job.
        time.sleep(_GRACE_SECONDS)
        os._exit(1)

    def _is_standstill(self, meter: Meter) -> bool:
        """Return whether a look finds that no rank made progress for too long.

        A look may read many files on shared storage, so it comes only once in a tenth of the limit.
        If this rank made progress since the last one, its file is touched. A standstill is that
        neither this rank's meter nor any rank's file has changed within the limit.
        """
        now = self._running.seconds()
        if now - self._last_look < self._seconds / 10:
            return False
        self._last_look = now
        has_new_sign = meter.last_sign > self._last_sign
        if has_new_sign:
            self._last_sign, self._last_change = meter.last_sign, now
        # Errors of storage count as no progress, since they would end this thread otherwise.
        with suppress(OSError):
            if has_new_sign:
                self._signs.mkdir(exist_ok=True)
                (self._signs / f"rank-{self.rank}").touch()
            # File times may come from another machine's clock, so only their changes count.
            signs = {path.name: path.stat().st_mtime_ns for path in self._signs.glob("rank-*")}
            if signs != self._last_signs:
                self._last_signs, self._last_change = signs, now
        return now - self._last_change >= self._seconds

    def _report(self, meter: Meter) -> None:
        """Write what this rank was doing, for how long, and the stack of its main thread."""
        self._folder.mkdir(exist_ok=True)
        frame = sys._current_frames().get(self._main_thread)
        report = StallReport(
            doing=meter.doing,
            seconds=round(meter.seconds_without_sign, 1),
            stack=traceback.format_stack(frame) if frame else [],
        )
        with new_file(self._folder / f"rank-{self.rank}.json") as unfinished:
            unfinished.write_text(json.dumps(report._asdict(), indent=1), encoding="utf-8")


def read_reports(folder: Path, world_size: int) -> str:
    """Return the reports of all ranks about a standstill as text, one line per rank."""
    lines: list[str] = []
    for rank in range(world_size):
        path = folder / f"rank-{rank}.json"
        if not path.exists():
            lines.append(f"  rank {rank}: no report; it is stopped, or its machine is gone")
            continue
        report = StallReport(**json.loads(path.read_text(encoding="utf-8")))
        location = "no stack"
        if report.stack:
            # The innermost call comes last; its first line names file and line.
            location = report.stack[-1].strip().splitlines()[0]
        lines.append(f"  rank {rank}: {report.doing}, for {report.seconds:g} s ({location})")
    return "\n".join(lines)
