"""Folders that this code made: a file in each says so, and only these are ever removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

MARKER: Final = "made-by-hep-pipeline"


def make(folder: Path) -> None:
    """Make a folder that is ours.

    Raises:
        FileExistsError: There is something of that name.
    """
    folder.mkdir(parents=True)
    (folder / MARKER).touch()


def is_ours(folder: Path) -> bool:
    """Whether this code made a folder. A symbolic link is never ours, whatever it leads to.

    A kill just after a folder was made leaves it empty, so an empty one counts: it holds nothing that could be lost.
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    return (folder / MARKER).is_file() or not any(folder.iterdir())


def remove(folder: Path) -> None:
    """Remove a folder if it is ours, the marker last: what a kill leaves of it is still ours."""
    if not is_ours(folder):
        return
    marker = folder / MARKER
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != marker:
            path.unlink()
    marker.unlink(missing_ok=True)
    folder.rmdir()
