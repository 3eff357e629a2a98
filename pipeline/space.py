"""Whether there is room for what a stage is going to write."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from pipeline.errors import RunFolderError

#: Of errors where nothing can be written any more.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: Asked for in any case: manifests, figures, logs.
LEAST_BYTES: Final = 64 * 2**20


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, those that other versions share included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def out_of_room(error: BaseException | None) -> OSError | None:
    """What the system said, where an error comes from a disk that is full or may not be written.

    Libraries that then fail to close their half-written files raise something else, with this as its context.

    Examples:
        >>> out_of_room(OSError(errno.ENOSPC, "No space left on device"))
        OSError(28, 'No space left on device')
        >>> out_of_room(ValueError("no number"))
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error
        error = error.__cause__ or error.__context__
    return None


def says_out_of_room(words: str) -> bool:
    """Whether a message of another process names such an error.

    Examples:
        >>> says_out_of_room("IOException: No space left on device")
        True
    """
    return any(os.strerror(number) in words for number in _NO_ROOM)


def refuse_full_disk(folder: Path, stage: str, before: Path | None) -> None:
    """Before a stage starts, there must be as much space as its last version takes, since it will hardly be smaller.

    Args:
        folder: Where it writes.
        stage: Its name, for the message.
        before: Its last version; None before the first.

    Raises:
        RunFolderError: There is not.
    """
    needed = LEAST_BYTES if before is None else max(LEAST_BYTES, size_of(before))
    free = shutil.disk_usage(folder).free
    if free < needed:
        what = "at least is asked for" if before is None else f"as the last version, {before.name}"
        raise RunFolderError(
            f"{stage} needs about {needed / 1e6:,.0f} MB ({what}), and {free / 1e6:,.0f} MB are free in {folder}. "
            f"Make room, for example with `python -m pipeline clean`, or choose another run_dir."
        )
