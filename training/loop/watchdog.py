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
from typing import Final

from hep_core.atomic_files import new_file
from training.loop.metering import Meter

_GRACE_SECONDS: Final = 3.0


class Watchdog:
    """A thread that checks a worker's meter; if no rank books anything for too long, all report and the job ends.

    A rank that waits for slower ones books nothing either. So every rank with new bookings touches a file, and the run
    is at a standstill only if no file changes. Reports go to `<folder>/rank-<n>.json`: what the rank was doing, for how
    long, and its stack.

    `folder`: folder of the reports; shared by all ranks. `signs`: folder of the files that ranks touch; shared by all
    ranks. `seconds`: time without progress that ends the run [s].
    """

    def __init__(self, folder: Path, signs: Path, *, rank: int, seconds: float) -> None:
        self.rank = rank
        self._folder = folder
        self._signs = signs
        self._seconds = seconds
        self._seen: dict[str, int] = {}
        self._seen_change = 0.0
        self._main = threading.get_ident()
        self._meter: Meter
        self._thread = threading.Thread(target=self._look, daemon=True)

    def watch(self, meter: Meter) -> None:
        """Check this meter from now on; what was before does not count."""
        meter.alive()
        self._meter = meter
        if not self._thread.is_alive():
            self._thread.start()

    def _look(self) -> None:
        last_look = -math.inf
        while not self._folder.exists():
            if time.monotonic() - last_look >= self._seconds / 10:
                last_look = time.monotonic()
                if self._is_standstill(self._meter):
                    break
            time.sleep(min(self._seconds / 4, 1.0))
        self._report(self._meter)
        # The other ranks see the folder and report too; then this rank ends the job.
        time.sleep(_GRACE_SECONDS)
        os._exit(1)

    def _is_standstill(self, meter: Meter) -> bool:
        """Whether no rank made progress for too long; also publishes the progress of this rank."""
        now = time.monotonic()
        # Storage that fails shows no progress; an error would end this thread.
        with suppress(OSError):
            if meter.seconds_without_sign < self._seconds / 4:
                self._signs.mkdir(exist_ok=True)
                (self._signs / f"rank-{self.rank}").touch()
            # File times may come from another machine's clock, so only their changes count.
            seen = {path.name: path.stat().st_mtime_ns for path in self._signs.glob("rank-*")}
            if seen != self._seen:
                self._seen, self._seen_change = seen, now
        return min(meter.seconds_without_sign, now - self._seen_change) >= self._seconds

    def _report(self, meter: Meter) -> None:
        self._folder.mkdir(exist_ok=True)
        frame = sys._current_frames().get(self._main)
        content = {
            "doing": meter.doing,
            "seconds": round(meter.seconds_without_sign, 1),
            "stack": traceback.format_stack(frame) if frame else [],
        }
        with new_file(self._folder / f"rank-{self.rank}.json") as unfinished:
            unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_reports(folder: Path, world_size: int) -> str:
    """Reports of the ranks about a standstill, one line per rank."""
    lines = []
    for rank in range(world_size):
        path = folder / f"rank-{rank}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            where = content["stack"][-1].strip().splitlines()[0] if content["stack"] else "no stack"
            lines.append(
                f"  rank {rank}: {content['doing']}, for {content['seconds']:g} s ({where})"
            )
        else:
            lines.append(f"  rank {rank}: no report; it is stopped, or its machine is gone")
    return "\n".join(lines)
