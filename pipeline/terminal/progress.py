"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

#: Time between two lines of progress where there is no terminal [s].
_SECONDS_BETWEEN_LINES: Final = 5.0


class Bar:
    """Shows the progress of a piece of work with rate and remaining time.

    On a terminal it is a bar. Elsewhere, such as in a log file, a thread prints a line at most
    every 5 s, and without updates less and less often that the work is still running. Call the
    object with each update, or `add`.
    """

    def __init__(self, console: Console, label: str, unit: str, total: int = 0) -> None:
        """Prepare the bar; it is shown from `with` on. `label` names the work."""
        self._console = console
        self._label = label
        self._unit = unit
        """Of what the numbers count, such as `events`."""
        self._total = total
        """The amount for `add`; 0 if it is unknown."""
        self._done = 0
        self._state = "starting"
        """The text beside the bar."""
        self._last_update: object = None
        """Arguments of the last call, from which the thread sees whether there was another."""
        self._has_ended = threading.Event()
        self._start: tuple[float, int] | None = None
        """Time [s] and amount of work at the first update with some work. The rate counts from
        there, since the start of Spark or MPI is no work."""
        self._progress: Progress | None = None
        """The bar; None where there is no terminal."""
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
        """Show the bar, or start the thread that prints lines."""
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
        """Remove the bar, or let the thread end."""
        self._has_ended.set()
        if self._progress:
            self._progress.stop()

    def _print_lines(self) -> None:
        """Print each update; without updates a line after 5 s, 10 s, 20 s, 40 s of silence.

        This runs in a thread of its own, which wakes up every 5 s until the work has ended.
        """
        start = time.monotonic()
        printed_update, num_silent_looks = self._last_update, 0
        while not self._has_ended.wait(_SECONDS_BETWEEN_LINES):
            if self._last_update != printed_update:
                printed_update, num_silent_looks = self._last_update, 0
                duration = ""
            else:
                num_silent_looks += 1
                duration = f", at work for {time.monotonic() - start:.0f} s"
            # A power of two has one bit that is set.
            is_power_of_two = num_silent_looks.bit_count() == 1
            if num_silent_looks == 0 or is_power_of_two:
                line = f"  {self._label}: {self._state}{duration}"
                self._console.print(line, highlight=False, markup=False)

    def add(self, amount: int) -> None:
        """Show that this much more is done; units and total are those of the bar."""
        self._done += amount
        self(self._done, self._total)

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` is done, with a note; a total of 0 means unknown."""
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
        """Return the amount of work per second since the first update; 0 if it is not known yet.

        The first update with some work only sets the start.
        """
        now = time.monotonic()
        if self._start is None:
            if done:
                self._start = (now, done)
            return 0.0
        start_time, start_done = self._start
        return (done - start_done) / (now - start_time) if done > start_done else 0.0
