"""Notices coroutines that nobody awaits: a method that forgets `await` would train wrongly.

Python only warns of them, and the warnings of ranks are in a log that nobody reads.
"""

from __future__ import annotations

import warnings
from typing import Final, TextIO

from training.errors import TrainingError

#: The warnings of this process since the last start, each with file and line.
_never_awaited: Final[list[str]] = []
_TEXT: Final = "was never awaited"
_show_other_warning = warnings.showwarning


def watch_coroutines() -> None:
    """Begin to note coroutines that are not awaited, and forget those of an earlier run."""
    global _show_other_warning  # noqa: PLW0603 - a test or a notebook may set another function
    _never_awaited.clear()
    warnings.filterwarnings("always", f".*{_TEXT}", RuntimeWarning)
    if warnings.showwarning is not _note_warning:
        _show_other_warning = warnings.showwarning
        warnings.showwarning = _note_warning


def require_awaited() -> None:
    """Raise TrainingError if a coroutine was not awaited since `watch_coroutines`."""
    if _never_awaited:
        message = _never_awaited[0]
        _never_awaited.clear()
        raise TrainingError(f"{message}. Write `await` before the call")


def _note_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Note a warning of a coroutine that is not awaited; show others as before."""
    if _TEXT in str(message):
        _never_awaited.append(f"{message} ({filename}, line {lineno})")
    else:
        _show_other_warning(message, category, filename, lineno, file, line)
