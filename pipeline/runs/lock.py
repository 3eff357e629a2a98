"""One run at a time in a run folder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import psutil

from pipeline.errors import FolderInUseError, RunFolderError

_SECONDS_FOR_A_NAME: Final = 1.0
_SECONDS_BETWEEN_LOOKS: Final = 0.02


@contextmanager
def locked(run_dir: Path, name: str = ".lock") -> Iterator[None]:
    """Hold the run folder; a second run refuses. The lock ends with the process, however it ends.

    Args:
        run_dir: The run folder.
        name: Of the file; jobs that hold other ones run beside each other.

    Raises:
        FolderInUseError: Another run holds it.
        RunFolderError: It cannot be written.
    """
    path = run_dir / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as cause:
        raise RunFolderError(
            f"{run_dir} cannot be written ({cause}). Choose another run_dir, or mend its permissions."
        ) from cause
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(
                f"{run_dir} is in use by another run (process {_holder(file)}). "
                f"Wait for it (--wait 600), end it, or choose another run_dir."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _holder(file: TextIO) -> str:
    """The process that holds the lock.

    It writes its number just after it has got it: until then there is none, or that of a run before, which was killed.
    """
    deadline = time.monotonic() + _SECONDS_FOR_A_NAME
    while True:
        file.seek(0)
        found = file.read().strip()
        if found.isdigit() and psutil.pid_exists(int(found)):
            return found
        if time.monotonic() > deadline:
            # Of another machine, which shares the disk.
            return found or "unknown"
        time.sleep(_SECONDS_BETWEEN_LOOKS)
