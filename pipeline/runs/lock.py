"""Locks: one run at a time in a run folder, and claims on the versions that other jobs read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TextIO

from pipeline.errors import FolderInUseError, RunFolderError, cannot_write
from pipeline.runs.own_folders import MARKER

#: Attempts at a lock whose holder has not said who it is, 10 ms apart.
_ATTEMPTS: Final = 100


@contextmanager
def locked(run_dir: Path, name: str = ".lock") -> Iterator[None]:
    """Hold the run folder; a second run is refused. The lock ends with the process, however that ends.

    A folder that was made for the lock is removed with it if it holds nothing else.

    Jobs with different lock files run beside each other.
    """
    try:
        is_new = not run_dir.exists()
        run_dir.mkdir(parents=True, exist_ok=True)
        file = (run_dir / name).open("a+")
    except OSError as cause:
        raise cannot_write(run_dir, cause) from cause
    with file:
        _lock(file, run_dir)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            if is_new and [each.name for each in run_dir.iterdir()] == [name]:
                (run_dir / name).unlink()
                with contextlib.suppress(OSError):
                    run_dir.rmdir()


@contextmanager
def reading(folders: Iterable[Path]) -> Iterator[None]:
    """Claim version folders that a job reads, so that `clean` keeps them; the claim ends with the process."""
    with ExitStack() as held:
        for folder in folders:
            # A folder without the marker is never removed.
            with contextlib.suppress(FileNotFoundError):
                fcntl.flock(held.enter_context((folder / MARKER).open()), fcntl.LOCK_SH)
        yield


def is_read(folder: Path) -> bool:
    """Whether a running job has claimed a version folder."""
    try:
        with (folder / MARKER).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _lock(file: TextIO, run_dir: Path) -> None:
    holder = ""
    # A run writes its process id just after it gets the lock, and removes it just before it frees the lock.
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            if holder := file.read().strip():
                break
            time.sleep(0.01)
        except OSError as cause:
            raise RunFolderError(
                f"{run_dir}: its file system cannot lock files ({cause}), so two runs could write there at once. "
                f"Mount it with locks (Lustre: the option `flock`; NFS: a lock daemon), or choose a run_dir on another "
                f"file system."
            ) from cause
        else:
            if os.fstat(file.fileno()).st_nlink:
                return
            # Another run has just removed the folder that it made.
            break
    raise FolderInUseError(
        f"{run_dir} is in use by another run (process {holder or 'unknown'}). "
        f"Wait for it (--wait 600), end it, or choose another run_dir."
    )
