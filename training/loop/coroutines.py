"""Notices coroutines that nobody awaits: a method that forgets `await` would train wrongly.

Python only warns of them, and the warnings of ranks are in a log that nobody reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from training.errors import TrainingError

#: The warnings since the context began, each with file and line.
_never_awaited: Final[list[str]] = []
_TEXT: Final = "was never awaited"


@contextmanager
def checked_awaits() -> Iterator[None]:
    """Note coroutines that are not awaited within the context, for `require_awaited`.

    Warnings are shown as outside. The context ends with a check.

    Raises:
        TrainingError: A coroutine was not awaited, and the context has no other error.
    """
    _never_awaited.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("always", f".*{_TEXT}", RuntimeWarning)
        show_warning = warnings.showwarning

        def note_warning(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if _TEXT in str(message):
                _never_awaited.append(f"{message} ({filename}, line {lineno})")
            show_warning(message, category, filename, lineno, file, line)

        warnings.showwarning = note_warning
        yield
        require_awaited()


def require_awaited() -> None:
    """Raise TrainingError if a coroutine was not awaited within `checked_awaits` so far."""
    if _never_awaited:
        message = _never_awaited[0]
        _never_awaited.clear()
        raise TrainingError(f"{message}. Write `await` before the call")
