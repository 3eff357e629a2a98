"""Whether there is room for what a stage is going to write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from pipeline.errors import RunFolderError

#: Asked for in any case: manifests, figures, logs.
LEAST_BYTES: Final = 64 * 2**20


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, those that other versions share included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def refuse_full_disk(folder: Path, stage: str, before: Path | None) -> None:
    """Before a stage starts, there must be as much space as its last version takes, since it will hardly be smaller.

    Args:
        folder: Where it writes.
        stage: Its name, for the message.
        before: Its last version; None before the first.

    Raises:
        RunFolderError: There is not.
    """
    needed = LEAST_BYTES if before is None else max(LEAST_BYTES, size_of(before))
    free = shutil.disk_usage(folder).free
    if free < needed:
        what = "at least is asked for" if before is None else f"as the last version, {before.name}"
        raise RunFolderError(
            f"{stage} needs about {needed / 1e6:,.0f} MB ({what}), and {free / 1e6:,.0f} MB are free in {folder}. "
            f"Make room, for example with `python -m pipeline clean`, or choose another run_dir."
        )
