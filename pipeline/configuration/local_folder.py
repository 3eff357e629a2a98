"""Output folders that users name: on a file system of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ingestion.paths import PathError, located
from pipeline.errors import ConfigError

#: A scheme, and a slash: of `s3://bucket`, a path keeps `s3:/bucket`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_folder(words: str | Path) -> Path:
    """The path of a folder; `~` and variables are as in a shell. This makes nothing.

    Raises:
        ValueError: It is a URL.
        PathError: A variable or a user is unknown.

    Examples:
        >>> local_folder("runs/mine")
        PosixPath('runs/mine')
    """
    if _URL.match(str(words)):
        raise ValueError(f"'{words}' is a URL, and outputs go to local file systems only; name a folder")
    return Path(located(str(words)))


def chosen_folder(words: Path, option: str) -> Path:
    """`local_folder` of an option of the command line.

    Raises:
        ConfigError: It is no local folder; the message begins with the option.
    """
    try:
        return local_folder(words)
    except (ValueError, PathError) as cause:
        raise ConfigError(f"{option}: {cause}.") from cause
