"""Which files are left for another run: those that came too late for this one, or are still being written."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ingestion.settings import IngestSettings


class Cause(StrEnum):
    """Why a file is left for another run."""

    LATE = "late"
    """It came after the end of what this run is about."""
    UNFINISHED = "unfinished"
    """It may still be being written."""


class Waiting(NamedTuple):
    """A file that is left for another run, and why."""

    sample: str
    path: str
    cause: Cause
    reason: str
    """The cause in words, with what is known of this file."""


def why_nothing_is_read(sample: str, waiting: Sequence[Waiting], num_bad: int, settings: IngestSettings) -> str:
    """What to say of a sample none of whose files is for this run: how many wait, why, and when they will be taken.

    Args:
        sample: Its name.
        waiting: Its files that wait, at least one.
        num_bad: Its files that are skipped; there are no others.
        settings: What made them wait.

    Examples:
        >>> settings = IngestSettings(until=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
        >>> late = [Waiting("qcd", name, Cause.LATE, "") for name in ("a.root", "b.root")]
        >>> print(why_nothing_is_read("qcd", late, 0, settings))  # doctest: +NORMALIZE_WHITESPACE
        sample 'qcd': all 2 files are left for another run (2 came at or after ingest.until, 2026-01-01 00:00:00+00:00);
        nothing to do yet. A run with a later ingest.until takes those that came late.
    """
    counts = Counter(each.cause for each in waiting)
    causes, hints = [], []
    if late := counts[Cause.LATE]:
        causes.append(f"{late} came at or after ingest.until, {settings.until}")
        hints.append("A run with a later ingest.until takes those that came late.")
    if unfinished := counts[Cause.UNFINISHED]:
        causes.append(f"{unfinished} may still be being written")
        hints.append(
            f"Run again in a while: what is being written is taken once it is whole, and counts as bad if it cannot be "
            f"read {settings.settle_seconds:g} s (ingest.settle_seconds) after its last change."
        )
    if num_bad:
        who = f"{len(waiting)} of {len(waiting) + num_bad} files are left for another run"
        causes.append("the others are skipped as bad")
    else:
        who = "its only file is" if len(waiting) == 1 else f"all {len(waiting)} files are"
        who += " left for another run"
    return f"sample '{sample}': {who} ({'; '.join(causes)}); nothing to do yet. {' '.join(hints)}"


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
