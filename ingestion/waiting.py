"""Which files wait for a later run: those that came too late for this one, or are still being written."""

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
    """Why a file waits for a later run."""

    LATE = "late"
    """It came at or after `ingest.until`, the end of this run's data."""
    UNFINISHED = "unfinished"
    """It may still be being written."""


class Waiting(NamedTuple):
    """A file that waits for a later run, and the reason."""

    sample: str
    path: str
    cause: Cause
    reason: str
    """The cause in words, with the details of this file."""


def why_nothing_is_read(sample: str, waiting: Sequence[Waiting], num_bad: int, settings: IngestSettings) -> str:
    """The message about a sample with nothing to read in this run: how many files wait, why, and until when.

    Of its files, at least one is in `waiting`, and `num_bad` are skipped; it has no others.

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
            f"Run again later: a file that is being written is read once it is complete. It counts as bad if it cannot "
            f"be read {settings.settle_seconds:g} s (ingest.settle_seconds) after its last change."
        )
    who = "its only file is" if len(waiting) == 1 else f"all {len(waiting)} files are"
    if num_bad:
        who = f"{len(waiting)} of {len(waiting) + num_bad} files are"
        causes.append("the others are skipped as bad")
    return f"sample '{sample}': {who} left for another run ({'; '.join(causes)}); nothing to do yet. {' '.join(hints)}"


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
