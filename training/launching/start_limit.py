"""The launcher's watch over the ranks until their own watchdogs run, and over an mpirun that does not see their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from training.launching.rank_reports import LaunchFiles
from training.settings import TrainSettings

#: Least time without any news from a start [s]; a rank needs seconds to load its libraries.
_LEAST_SECONDS: Final = 300.0
#: Time for mpirun to end after the ranks have reported a standstill [s].
_END_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5


class StartLimit:
    """A thread that stops a launcher whose ranks do not start, or that does not end after a standstill.

    The time counts from the last news: a rank began, is in MPI, or trains.

    `settings`: number of ranks and the time without progress.
    """

    def __init__(self, files: LaunchFiles, settings: TrainSettings, stop: Callable[[], None]) -> None:
        self._files, self._settings, self._stop = files, settings, stop
        self._seconds = max(settings.stall_seconds, _LEAST_SECONDS)
        self.late = ""
        """What did not come, if the launcher was stopped for that."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The launcher has ended."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        seen, since = -1, time.monotonic()
        while not self._over.wait(_LOOK_SECONDS):
            if self._files.stalls.exists():
                if not self._over.wait(_END_SECONDS):
                    self._stop()
                return
            news = sum(path.stat().st_mtime_ns for path in self._files.present.glob("rank-*.json"))
            trains = {path.name for path in self._files.signs.glob("rank-*")}
            if news != seen or len(trains) == self._settings.workers:
                seen, since = news, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self.late = f"the ranks did not start within {self._seconds:g} s:\n{self._missing(trains)}"
                self._stop()
                return

    def _missing(self, trains: set[str]) -> str:
        present = self._files.presence()
        lines = [
            f"  rank {rank} on {present[rank]['host']}: {present[rank]['what']}"
            if rank in present
            else f"  rank {rank}: its process did not come"
            for rank in range(self._settings.workers)
            if f"rank-{rank}" not in trains
        ]
        return "\n".join(lines)
