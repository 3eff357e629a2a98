"""Which files are left for another run: those that came too late for this one, or are still being written."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import NamedTuple


class Waiting(NamedTuple):
    """A file that is left for another run, and why."""

    path: str
    reason: str


def arrived_late(modified: str, until: dt.datetime | None) -> bool:
    """Whether a local file was modified at a time or later.

    Args:
        modified: As `ingestion.files.size_and_time` gives it; of files on servers nothing is said.
        until: The time; None is never.

    Examples:
        >>> arrived_late("1767225600.0", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        True
        >>> arrived_late("1767225599.9", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        False
    """
    return until is not None and _is_local_time(modified) and float(modified) >= until.timestamp()


def is_recent(modified: str, seconds: float) -> bool:
    """Whether a local file was modified less than so long ago, or by a clock that is so little ahead of ours."""
    return _is_local_time(modified) and abs(time.time() - float(modified)) < seconds


def _is_local_time(modified: str) -> bool:
    """Local file systems say seconds since 1970, servers all sorts of things."""
    return re.fullmatch(r"\d+(\.\d+)?", modified) is not None
