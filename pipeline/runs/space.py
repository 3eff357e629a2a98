"""Whether there is room for what a stage is going to write."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: Of errors where nothing can be written any more.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: Asked for in any case: temporary files of Spark and MPI, figures, logs.
LEAST_BYTES: Final = 2**30


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


def bytes_needed(before: Path | None, taken_over: Iterable[Path] = ()) -> int:
    """Free space that must be there before a stage starts: as much as it will write, judged by its last version.

    The new version will hardly be smaller than that, but what it takes over from it as hard links takes no space. Which
    files these are, the stage knows, and no count of links: a first version's have one, until the second takes them
    over; those that the last night added have one as well, though the next will not write them again; and a stage that
    makes all anew, for changed code say, needs the whole size again however often its old files are linked. What comes
    of new input is not known before, and not asked for; nor is room for copies on a file system without hard links.

    Args:
        before: Its last version; None before the first.
        taken_over: Files of that version that the new one takes over.
    """
    written = 0 if before is None else size_of(before.rglob("*")) - size_of(taken_over)
    return max(LEAST_BYTES, written)
