"""Which files wait for a later run: those that came too late for this one, or are still being written."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ingestion.errors import FilesToComeError


class Waiting(NamedTuple):
    """A file that waits for a later run, and the reason."""

    sample: str
    path: str
    reason: str


def refuse_waiting(waiting: Sequence[Waiting], readable: Collection[str], bad: Sequence[str]) -> None:
    """Refuse a sample whose readable files all wait: the data is fine, but it is too early to read it.

    Raises:
        FilesToComeError: A sample has files that wait, and none that can be read now.
    """
    reasons: dict[str, list[str]] = {}
    for each in waiting:
        if each.sample not in readable:
            reasons.setdefault(each.sample, []).append(each.reason)
    problems = [
        f"sample '{name}': nothing to do yet (files left for another run: {len(of_files)}, skipped as bad: "
        f"{bad.count(name)}). The first: {of_files[0]}"
        for name, of_files in reasons.items()
    ]
    if problems:
        raise FilesToComeError("\n".join(problems))


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
