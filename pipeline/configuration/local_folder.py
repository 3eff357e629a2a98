"""Output folders that users name: on a file system of this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ingestion.paths import PathError, located
from pipeline.errors import ConfigError

#: A scheme, and a slash: of `s3://bucket`, a path keeps `s3:/bucket`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
#: Bytes of a name, on all common file systems.
_LONGEST_NAME: Final = 255


def local_folder(words: str | Path) -> Path:
    """The path of a folder; `~` and variables are as in a shell. This makes nothing.

    Raises:
        ValueError: It is a URL, or a name in it is too long.
        PathError: A variable or a user is unknown.

    Examples:
        >>> local_folder("runs/mine")
        PosixPath('runs/mine')
    """
    if _URL.match(str(words)):
        raise ValueError(
            f"'{words}' is a URL, and outputs go to local file systems only; name a folder, and copy it there "
            f"after the run"
        )
    folder = Path(located(str(words)))
    longest = max(len(os.fsencode(name)) for name in folder.absolute().parts)
    if longest > _LONGEST_NAME:
        raise ValueError(f"a name in it is {longest} bytes long; file systems take {_LONGEST_NAME}")
    return folder


def chosen_folder(words: Path, option: str) -> Path:
    """`local_folder` of an option of the command line.

    Raises:
        ConfigError: It is no local folder; the message begins with the option.
    """
    try:
        return local_folder(words)
    except (ValueError, PathError) as cause:
        raise ConfigError(f"{option}: {cause}.") from cause
