"""Space on disks: sizes of files, and errors of full disks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

#: Error numbers of a disk that is full or read-only.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
#: Minimum for any stage, with temporary files of Spark and MPI, figures and logs.
LEAST_BYTES: Final = 2**30


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of all files, including those that other versions share; folders and missing files count 0."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def out_of_room(error: BaseException | None) -> OSError | None:
    """The error of the system, if an error comes from a disk that is full or read-only; else None.

    Libraries that then fail to close a half-written file raise another error, with this one as its context.

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
