"""Folders that this code made. Each holds a marker file; only these folders are ever removed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pipeline.errors import RunFolderError, cannot_write

MARKER: Final = "made-by-hep-pipeline"


def make(folder: Path) -> None:
    """Make a folder with the marker."""
    folder.mkdir(parents=True)
    (folder / MARKER).touch()


def is_ours(folder: Path) -> bool:
    """Whether this code made a folder. A symbolic link is never ours.

    A kill between folder and marker leaves an empty folder, so an empty folder counts as ours.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / MARKER).is_file() or not any(folder.iterdir())


def empty(folder: Path) -> None:
    """Remove all but the marker from a folder if it is ours."""
    for path in folder.iterdir() if is_ours(folder) else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARKER:
            path.unlink()


def remove(folder: Path) -> None:
    """Remove a folder if it is ours. The marker comes last, so that the rest after a kill is still ours."""
    if is_ours(folder):
        empty(folder)
        (folder / MARKER).unlink(missing_ok=True)
        folder.rmdir()


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the one of `--out`, which gets its name when the work is done; removed after a failure.

    The result belongs to the user: it is none of ours.
    """
    if folder.exists():
        raise RunFolderError(f"{folder} exists already. Give a new folder with --out, or remove it.")
    unfinished = folder.absolute().with_name(f".{folder.name}.unfinished")
    try:
        remove(unfinished)
        make(unfinished)
    except OSError as cause:
        raise cannot_write(unfinished, cause, other="another folder with --out") from cause
    try:
        yield unfinished
        (unfinished / MARKER).unlink()
        unfinished.rename(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            remove(unfinished)
        raise
