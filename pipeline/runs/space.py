"""Whether there is room for what a stage is going to write."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pipeline.errors import RunFolderError

#: Of errors where nothing can be written any more.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: Asked for in any case: manifests, figures, logs.
LEAST_BYTES: Final = 64 * 2**20


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of all files of these, those that other versions share included; folders, and what is gone, take none."""
    return sum(path.stat().st_size for path in paths if path.is_file())


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


def refuse_full_disk(folder: Path, stage: str, before: Path | None, taken_over: Iterable[Path] = ()) -> None:
    """Before a stage starts, there must be as much space as it will write, judged by its last version.

    The new version will hardly be smaller than that, but what it takes over from it as hard links takes no space. Which
    files these are, the stage knows, and no count of links: a first version's have one, until the second takes them
    over; those that the last night added have one as well, though the next will not write them again; and a stage that
    makes all anew, for changed code say, needs the whole size again however often its old files are linked. What comes
    of new input is not known before, and not asked for; nor is room for copies on a file system without hard links.

    Args:
        folder: Where it writes.
        stage: Its name, for the message.
        before: Its last version; None before the first.
        taken_over: Files of that version that the new one takes over.

    Raises:
        RunFolderError: There is not.
    """
    written = 0 if before is None else size_of(before.rglob("*")) - size_of(taken_over)
    needed = max(LEAST_BYTES, written)
    free = shutil.disk_usage(folder).free
    if free < needed:
        what = "at least is asked for"
        if before is not None and written >= LEAST_BYTES:
            what = f"as the last version, {before.name}, but for what is taken over from it"
        raise RunFolderError(
            f"{stage} needs about {needed / 1e6:,.0f} MB ({what}), and {free / 1e6:,.0f} MB are free in {folder}. "
            f"Make room, for example with `python -m pipeline clean`, or choose another run_dir."
        )
