"""What may be meant by a path, glob or URL of the config that matches nothing."""

from __future__ import annotations

import itertools
from pathlib import Path

from ingestion.storage import has_wildcards, is_remote


def resolved(pattern: str) -> str:
    """A pattern from the root of the file system on; a URL stays as it is."""
    return pattern if is_remote(pattern) else str(Path(pattern).absolute())


def may_come_later(pattern: str) -> bool:
    """Whether a pattern may match nothing for a while: it needs wildcards.

    In web addresses a question mark is no wildcard: it begins the query.
    """
    is_web = pattern.startswith(("http://", "https://"))
    return has_wildcards(pattern.replace("?", "") if is_web else pattern)


def awaits_files(pattern: str) -> bool:
    """Whether a pattern is right, as far as can be seen without files: the folder before its wildcards is there."""
    parts = Path(pattern).parts
    fixed = Path(*itertools.takewhile(lambda part: not has_wildcards(part), parts))
    return may_come_later(pattern) and (is_remote(pattern) or fixed.is_dir())


def neighbours(pattern: str) -> list[str]:
    """Content of the folder of a local pattern, or of the nearest existing folder above it."""
    if is_remote(pattern):
        return []
    folder = next(each for each in Path(pattern).absolute().parents if each.is_dir())
    return sorted(str(path) for path in folder.iterdir() if not path.name.startswith("."))
