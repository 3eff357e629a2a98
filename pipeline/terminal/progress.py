"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LINES: Final = 5.0


class Bar:
    """Shows how far a piece of work is, with rate and estimated time left.

    Args:
        console: Where to show it.
        label: What is being done.
        unit: What is counted (`events`).
    """

    def __init__(self, console: Console, label: str, unit: str) -> None:
        self._console = console
        self._label = label
        self._unit = unit
        self._last_line = time.monotonic()
        # Rate and time left count from the first news: starting Spark or MPI is not part of the work.
        self._first: tuple[float, int] | None = None
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[words]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task(label, total=None, words="starting")

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` is done."""
        if self._first is None and done:
            self._first = (time.monotonic(), done)
        rate = 0.0
        if self._first is not None and done > self._first[1]:
            rate = (done - self._first[1]) / (time.monotonic() - self._first[0])
        words = f"{done}/{total} {self._unit}"
        if rate:
            words += f", {rate:,.0f}/s, about {(total - done) / rate:.0f} s left"
        if note:
            words += f", {note}"
        if self._progress:
            self._progress.update(self._task, completed=done, total=total, words=words)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._console.print(f"  {self._label}: {words}", highlight=False)
