"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LINES: Final = 5.0


class Bar:
    """Shows the progress of a piece of work with rate and remaining time.

    Without updates, that it is still running.
    """

    def __init__(self, console: Console, label: str, unit: str, total: int = 0) -> None:
        self._console = console
        self._label = label
        self._unit = unit
        self._total = total
        self._done = 0
        self._state = "starting"
        self._last_update: object = None
        self._has_ended = threading.Event()
        # Time and amount of work at the first update, from which the rate counts: the start of
        # Spark or MPI is no work.
        self._start: tuple[float, int] | None = None
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task(label, total=None, state=self._state)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        else:
            threading.Thread(target=self._print_lines, daemon=True).start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._has_ended.set()
        if self._progress:
            self._progress.stop()

    def _print_lines(self) -> None:
        """Print each update; without updates a line after 5 s, 10 s, 20 s and so on."""
        start = time.monotonic()
        printed_update, num_silent_looks = self._last_update, 0
        while not self._has_ended.wait(_SECONDS_BETWEEN_LINES):
            if self._last_update != printed_update:
                printed_update, num_silent_looks = self._last_update, 0
                duration = ""
            else:
                num_silent_looks += 1
                duration = f", at work for {time.monotonic() - start:.0f} s"
            is_power_of_two = num_silent_looks.bit_count() == 1
            if num_silent_looks == 0 or is_power_of_two:
                line = f"  {self._label}: {self._state}{duration}"
                self._console.print(line, highlight=False, markup=False)

    def add(self, amount: int) -> None:
        """Show that this much more is done."""
        self._done += amount
        self(self._done, self._total)

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` is done; a total of 0 means unknown."""
        self._last_update = (done, total, note)
        phrases = []
        if total:
            phrases.append(f"{done}/{total} {self._unit}")
        rate = self._rate(done)
        if rate and done < total:
            seconds_left = (total - done) / rate
            phrases += [f"{rate:,.0f}/s", f"about {seconds_left:.0f} s left"]
        if note:
            phrases.append(note)
        self._state = ", ".join(phrases)
        if self._progress:
            self._progress.update(
                self._task, completed=done, total=total or None, state=self._state
            )

    def _rate(self, done: int) -> float:
        """Work a second since the first update; 0 if it is not known yet."""
        now = time.monotonic()
        if self._start is None:
            if done:
                self._start = (now, done)
            return 0.0
        start_time, start_done = self._start
        return (done - start_done) / (now - start_time) if done > start_done else 0.0
