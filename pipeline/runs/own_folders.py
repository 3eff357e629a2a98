"""Folders that this code made. Each holds a marker file; only these folders are ever removed.

A job claims the folders that it reads or writes by a shared lock on their markers. A command that
runs beside others keeps a claim on every folder of a version that it resolves (`keeping_claims`).
A removal holds an exclusive lock from the check of the claims to its end (`unclaimed`): a job that
claims a folder meanwhile waits, and then finds that it is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Final, TextIO

from pipeline.errors import FolderInUseError, RunFolderError, cannot_write

MARKER: Final = "made-by-hep-pipeline"
#: The claims of the innermost `keeping_claims`; None outside.
_KEPT_CLAIMS: ContextVar[contextlib.ExitStack | None] = ContextVar("kept claims", default=None)


def make(folder: Path, note: str = "") -> None:
    """Make a folder with the marker file, whose content is a note; see `read_note`.

    Raises:
        FileExistsError: There is such a folder.
    """
    folder.mkdir(parents=True)
    # Another process that takes the empty folder for its own writes the marker first.
    with (folder / MARKER).open("x", encoding="utf-8") as marker:
        marker.write(note)


def read_note(folder: Path) -> str:
    """The note in the marker of a folder; empty if there is none."""
    try:
        return (folder / MARKER).read_text(encoding="utf-8")
    except OSError:
        return ""


def is_ours(folder: Path) -> bool:
    """Return whether this code made a folder: it holds the marker file, or nothing at all.

    A kill between folder and marker leaves an empty folder, so that counts as ours. A symbolic
    link is never ours.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    # The names are read once, since another process may write the marker meanwhile.
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return False
    return MARKER in names or not names


def remove(folder: Path) -> None:
    """Remove a folder with its content if it is ours; otherwise nothing happens.

    The marker comes last, so that the folder is still ours after a kill.
    """
    if not is_ours(folder):
        return
    _empty(folder)
    (folder / MARKER).unlink(missing_ok=True)
    folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove all that a folder holds, but for the marker."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARKER:
            path.unlink()


@contextlib.contextmanager
def claimed(folders: Iterable[Path]) -> Iterator[None]:
    """Claim folders that a job reads or writes, so that nobody removes them meanwhile.

    A claim is a shared lock on the marker file of a folder, so several jobs can claim the same.
    It ends with the block, or with the process. A claim waits while a folder is being removed, so a
    job reads what is there only after the claim.
    """
    with contextlib.ExitStack() as claims:
        for folder in folders:
            # A folder without the marker is never removed. Run folders lie where files can be
            # locked.
            with contextlib.suppress(OSError):
                marker = claims.enter_context((folder / MARKER).open())
                fcntl.flock(marker, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def keeping_claims() -> Iterator[None]:
    """Keep the claims of `claim` until the end of the block, for a command without the run folder.

    A command that holds the run folder needs none, since `clean` waits for it.
    """
    with contextlib.ExitStack() as claims:
        token = _KEPT_CLAIMS.set(claims)
        claims.callback(_KEPT_CLAIMS.reset, token)
        yield


def claim(folder: Path) -> None:
    """Claim a folder until the end of `keeping_claims`; outside of it, nothing happens."""
    claims = _KEPT_CLAIMS.get()
    if claims is not None:
        claims.enter_context(claimed([folder]))


@contextlib.contextmanager
def unclaimed(folders: Iterable[Path]) -> Iterator[list[Path]]:
    """Hold folders that no job has claimed, so that none claims them during the block; yields them.

    An exclusive lock on the marker file is refused as long as a job holds a shared one. A folder
    without a marker is not claimed. Each folder takes one of the files that a process may open.
    """
    with contextlib.ExitStack() as locks:
        unclaimed_folders = []
        for folder in folders:
            with contextlib.suppress(BlockingIOError):
                _hold(folder, locks)
                unclaimed_folders.append(folder)
        yield unclaimed_folders


def _hold(folder: Path, locks: contextlib.ExitStack) -> None:
    """Lock the marker of a folder exclusively, if there is one and it can be locked.

    Raises:
        BlockingIOError: A job has claimed the folder, or has made it again meanwhile.
    """
    try:
        marker = locks.enter_context((folder / MARKER).open("r+"))
    except OSError:
        return
    _lock(marker, folder)


def _lock(marker: TextIO, folder: Path) -> None:
    """Lock the open marker of a folder exclusively, if it can be locked.

    Raises:
        BlockingIOError: A job has claimed the folder, or has made it again meanwhile.
    """
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return
    # The lock may be on the marker of a folder that was removed before it.
    if not _is_at(folder / MARKER, marker):
        raise BlockingIOError(f"{folder} was removed")


def _is_at(path: Path, file: TextIO) -> bool:
    """Return whether an open file still has a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def is_claimed(folder: Path) -> bool:
    """Return whether a running job has claimed a folder."""
    with unclaimed([folder]) as unclaimed_folders:
        return not unclaimed_folders


def remove_unclaimed(folder: Path) -> None:
    """Remove a folder if it is ours and no job has claimed it; otherwise nothing happens."""
    with unclaimed([folder]) as unclaimed_folders:
        for unclaimed_folder in unclaimed_folders:
            remove(unclaimed_folder)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for the output of a command; it becomes `folder` at the end.

    The temporary folder is hidden and lies beside `folder`, which must not exist. It is removed
    after a failure. The finished folder has no marker: it belongs to the user, and is never
    removed by this code.

    Raises:
        RunFolderError: The folder exists already, or cannot be written.
        FolderInUseError: Another command is writing it.
    """
    _check_is_new(folder)
    unfinished = folder.absolute().with_name(f".{folder.name}.unfinished")
    with contextlib.ExitStack() as locks:
        try:
            _take(unfinished, locks)
        except BlockingIOError as cause:
            raise FolderInUseError(
                f"Another command is writing {folder}. Wait for its end, or give another --out."
            ) from cause
        except OSError as cause:
            raise cannot_write(
                unfinished, cause, alternative="another folder with --out"
            ) from cause
        try:
            yield unfinished
            _check_is_new(folder)
            unfinished.rename(folder)
        except BaseException:
            # It is locked until it is gone: no other command begins to write it meanwhile.
            with contextlib.suppress(OSError):
                remove(unfinished)
            raise
        # Without the marker the folder belongs to the user.
        (folder / MARKER).unlink()


def _take(folder: Path, locks: contextlib.ExitStack) -> None:
    """Make an empty folder, or take the one of a killed command, and lock its marker.

    Of several commands that begin at once, the one with the lock has the folder. Only that one
    removes anything, so the others find a folder with its content, or none.

    Raises:
        FileExistsError: There is a file of this name, or a folder that is not ours.
        BlockingIOError: Another command has the folder, or has just moved or removed it.
        OSError: The folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        # It may be gone by now.
        if not is_ours(folder) and os.path.lexists(folder):
            raise
    try:
        marker = locks.enter_context((folder / MARKER).open("a+", encoding="utf-8"))
    except FileNotFoundError as cause:
        raise BlockingIOError(f"{folder} was removed") from cause
    _lock(marker, folder)
    _empty(folder)


def _check_is_new(folder: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        RunFolderError: It does.
    """
    if folder.exists():
        raise RunFolderError(
            f"{folder} exists already. Give a new folder with --out, or remove it."
        )
