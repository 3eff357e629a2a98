"""Notices that a worker no longer gets on, and says what it was doing."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final

from training.metering import Meter

_GRACE_SECONDS: Final = 3.0


class Watchdog:
    """A thread that looks at a worker's meter; when nothing is booked for too long, all ranks report and the job ends.

    Reports go to `<folder>/rank-<n>.json`: what the rank was doing, for how long, and its stack.

    Args:
        folder: Where reports go; shared by all ranks, so that those who still get on report too.
        rank: Which rank.
        seconds: How long is too long.
    """

    def __init__(self, folder: Path, *, rank: int, seconds: float) -> None:
        self.rank = rank
        self._folder = folder
        self._seconds = seconds
        self._main = threading.get_ident()
        self._meter: Meter | None = None

    def watch(self, meter: Meter) -> None:
        """Look at this meter from now on."""
        is_first = self._meter is None
        self._meter = meter
        if is_first:
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        pause = min(self._seconds / 4, 1.0)
        meter = self._meter
        while meter is not None and meter.seconds_without_sign < self._seconds and not self._folder.exists():
            time.sleep(pause)
            meter = self._meter
        if meter is not None:
            self._report(meter)
        # The other ranks see the folder and report too; then this one ends the job.
        time.sleep(_GRACE_SECONDS)
        os._exit(1)

    def _report(self, meter: Meter) -> None:
        self._folder.mkdir(exist_ok=True)
        frame = sys._current_frames().get(self._main)
        content = {
            "doing": meter.doing,
            "seconds": round(meter.seconds_without_sign, 1),
            "stack": traceback.format_stack(frame) if frame else [],
        }
        unfinished = self._folder / f".rank-{self.rank}.json"
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
        unfinished.replace(self._folder / f"rank-{self.rank}.json")


def read_reports(folder: Path, world_size: int) -> str:
    """What each rank said when the run stood still, a line each."""
    lines = []
    for rank in range(world_size):
        path = folder / f"rank-{rank}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            lines.append(f"  rank {rank}: {content['doing']}, for {content['seconds']:g} s")
        else:
            lines.append(f"  rank {rank}: no word; it is stopped, or its machine is gone")
    return "\n".join(lines)
