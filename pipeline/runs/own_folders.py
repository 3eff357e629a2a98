"""Folders that this code made. Each holds a marker file; only these folders are ever removed.

A job claims the folders that it reads or writes by a lock on their markers.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pipeline.errors import FolderInUseError, RunFolderError, cannot_write

MARKER: Final = "made-by-hep-pipeline"


def make(folder: Path, note: str = "") -> None:
    """Make a folder with the marker, which holds a note."""
    folder.mkdir(parents=True)
    (folder / MARKER).write_text(note, encoding="utf-8")


def read_note(folder: Path) -> str:
    """The note in the marker of a folder; empty if there is none."""
    try:
        return (folder / MARKER).read_text(encoding="utf-8")
    except OSError:
        return ""


def is_ours(folder: Path) -> bool:
    """Whether this code made a folder. A symbolic link is never ours.

    A kill between folder and marker leaves an empty folder, so an empty folder counts as ours.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / MARKER).is_file() or not any(folder.iterdir())


def remove(folder: Path) -> None:
    """Remove a folder if it is ours.

    The marker comes last, so that after a kill it is still ours.
    """
    if not is_ours(folder):
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARKER:
            path.unlink()
    (folder / MARKER).unlink(missing_ok=True)
    folder.rmdir()


@contextlib.contextmanager
def claimed(folders: Iterable[Path]) -> Iterator[None]:
    """Claim folders that a job reads or writes, so that nobody removes them.

    The claim ends with the process.
    """
    with contextlib.ExitStack() as claims:
        for folder in folders:
            # A folder without the marker is never removed. Run folders lie where files can be
            # locked.
            with contextlib.suppress(OSError):
                marker = claims.enter_context((folder / MARKER).open())
                fcntl.flock(marker, fcntl.LOCK_SH)
        yield


def is_claimed(folder: Path) -> bool:
    """Whether a running job has claimed a folder."""
    try:
        with (folder / MARKER).open("r+") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside the one of `--out`, which gets its name when the work is done.

    It is removed after a failure. The result belongs to the user: it is none of ours.
    """
    if folder.exists():
        raise RunFolderError(
            f"{folder} exists already. Give a new folder with --out, or remove it."
        )
    unfinished = folder.absolute().with_name(f".{folder.name}.unfinished")
    if is_claimed(unfinished):
        raise FolderInUseError(
            f"Another command is writing {folder}. Wait for its end, or give another --out."
        )
    try:
        remove(unfinished)
        make(unfinished)
    except OSError as cause:
        raise cannot_write(unfinished, cause, alternative="another folder with --out") from cause
    try:
        with claimed([unfinished]):
            yield unfinished
            (unfinished / MARKER).unlink()
            unfinished.rename(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(unfinished)
        raise
