"""Locks: one run at a time in a run folder, and claims on the versions that other jobs read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TextIO

import psutil

from pipeline.errors import FolderInUseError, RunFolderError, cannot_write
from pipeline.runs.own_folders import MARKER

_SECONDS_FOR_A_NAME: Final = 1.0
_SECONDS_BETWEEN_LOOKS: Final = 0.02


@contextmanager
def locked(run_dir: Path, name: str = ".lock") -> Iterator[None]:
    """Hold the run folder; a second run is refused. The lock ends with the process, however that ends.

    Folders that were made for the lock are removed with it if they hold nothing else.

    Jobs with different lock files run beside each other.
    """
    path = run_dir / name
    made: list[Path] = []
    try:
        made += [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
        file = _held(path)
    except BaseException as error:
        _remove_unused(path, made)
        if isinstance(error, OSError):
            raise cannot_write(run_dir, error) from error
        raise
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            _remove_unused(path, made)


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


def _held(path: Path) -> TextIO:
    """The lock file, held by this process."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            _lock(file, path.parent)
            # An earlier run may have removed the file meanwhile, and another run may hold a new one of this name.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: TextIO, run_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUseError(
            f"{run_dir} is in use by another run (process {_holder(file)}). "
            f"Wait for it (--wait 600), end it, or choose another run_dir."
        ) from None
    except OSError as cause:
        raise RunFolderError(
            f"{run_dir}: its file system cannot lock files ({cause}), so two runs could write there at once. Mount it "
            f"with locks (Lustre: the option `flock`; NFS: a lock daemon), or choose a run_dir on another file system."
        ) from cause


def _remove_unused(path: Path, made: Sequence[Path]) -> None:
    """Remove the lock file and the folders made for it, the inner first, if they hold nothing else."""
    with contextlib.suppress(OSError):
        if made and {each.name for each in path.parent.iterdir()} <= {path.name}:
            path.unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()


def _holder(file: TextIO) -> str:
    """The process that holds the lock.

    It writes its number just after it takes the lock; until then the file is empty or names an earlier, killed run.
    """
    deadline = time.monotonic() + _SECONDS_FOR_A_NAME
    while True:
        file.seek(0)
        found = file.read().strip()
        if found.isdecimal() and psutil.pid_exists(int(found)):
            return found
        if time.monotonic() > deadline:
            # The process of another machine that shares the disk.
            return found or "unknown"
        time.sleep(_SECONDS_BETWEEN_LOOKS)
