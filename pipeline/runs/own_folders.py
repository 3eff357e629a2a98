"""Folders that this code made. Each holds a marker file; only these folders are ever removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

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
