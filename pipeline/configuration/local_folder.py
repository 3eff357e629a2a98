"""Output folders that users name: on a file system of this machine, with names that it allows."""

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
#: Bytes of a path. Linux allows 4095; paths of files below a run folder are longer by less than the difference.
_LONGEST_PATH: Final = 3500


def local_folder(words: str | Path) -> Path:
    """The path of a folder; `~` and variables are as in a shell. This makes nothing.

    Raises:
        ValueError: It is a URL, or too long.
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
    path = folder.absolute()
    longest = max(len(os.fsencode(name)) for name in path.parts)
    if longest > _LONGEST_NAME:
        raise ValueError(f"a name in it is {longest} bytes long; file systems take {_LONGEST_NAME}")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(f"it is {len(os.fsencode(path))} bytes long; a run needs a path of at most {_LONGEST_PATH}")
    return folder


def chosen_folder(words: Path, option: str) -> Path:
    """`local_folder` of an option of the command line.

    Raises:
        ConfigError: It is a URL, or too long; the message begins with the option.
    """
    try:
        return local_folder(words)
    except (ValueError, PathError) as cause:
        raise ConfigError(f"{option}: {cause}.") from cause
