"""Which files wait for a later run: those that came too late for this one, or are still being written."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import NamedTuple


class Waiting(NamedTuple):
    """A file that waits for a later run, and the reason."""

    sample: str
    path: str
    reason: str


def arrived_late(modified: str, until: dt.datetime | None) -> bool:
    """Whether a local file was modified at `until` or later; times of servers and None give False.

    Examples:
        >>> arrived_late("1767225600.0", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        True
        >>> arrived_late("1767225599.9", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        False
    """
    return until is not None and _is_local_time(modified) and float(modified) >= until.timestamp()


def is_recent(modified: str, seconds: float) -> bool:
    """Whether a local file was modified within `seconds` of now, before it or (clocks differ) after it."""
    return _is_local_time(modified) and abs(time.time() - float(modified)) < seconds


def _is_local_time(modified: str) -> bool:
    """Whether a time is in seconds since 1970, as local file systems give it; servers use other formats."""
    return re.fullmatch(r"\d+(\.\d+)?", modified) is not None
