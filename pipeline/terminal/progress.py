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
    """Shows the progress of a piece of work with rate and remaining time; without updates, that it is still running."""

    def __init__(self, console: Console, label: str, unit: str, total: int = 0) -> None:
        self._console = console
        self._label = label
        self._unit = unit
        self._total = total
        self._done = 0
        self._words = "starting"
        self._news: object = None
        self._ended = threading.Event()
        # Rate and remaining time start at the first update: the start of Spark or MPI is not part of the work.
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
            self._task = self._progress.add_task(label, total=None, words=self._words)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        else:
            threading.Thread(target=self._print_lines, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._progress:
            self._progress.stop()

    def _print_lines(self) -> None:
        """Print what is new; without news a line after 5 s, 10 s, 20 s and so on."""
        begun, said, silence = time.monotonic(), self._news, 0
        while not self._ended.wait(_SECONDS_BETWEEN_LINES):
            silence = 0 if self._news != said else silence + 1
            said = self._news
            if silence.bit_count() <= 1:
                still = f", at work for {time.monotonic() - begun:.0f} s" if silence else ""
                self._console.print(
                    f"  {self._label}: {self._words}{still}", highlight=False, markup=False
                )

    def add(self, number: int) -> None:
        """Show that this number more is done."""
        self._done += number
        self(self._done, self._total)

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` is done; a total of 0 means unknown."""
        now, self._news = time.monotonic(), (done, total, note)
        if self._first is None and done:
            self._first = (now, done)
        rate = 0.0
        if self._first is not None and done > self._first[1]:
            rate = (done - self._first[1]) / (now - self._first[0])
        parts = [f"{done}/{total} {self._unit}"] if total else []
        if rate and done < total:
            parts += [f"{rate:,.0f}/s", f"about {(total - done) / rate:.0f} s left"]
        self._words = ", ".join([*parts, *([note] if note else [])])
        if self._progress:
            self._progress.update(
                self._task, completed=done, total=total or None, words=self._words
            )
