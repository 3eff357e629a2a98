"""The parts of a stage, such as its networks.

Each has a folder, which a later version takes over or continues.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from hep_core.atomic_files import link_or_copy
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.store import StageStore
from pipeline.stages.base import Context

#: File in the folder of a part with the digest of its inputs.
_PART: Final = "made-from"


def unchanged_parts(
    recorded: Fingerprint | None, now: Fingerprint, missing: Iterable[str]
) -> frozenset[str]:
    """Parts of the version in use that are complete and would not change."""
    if recorded is None:
        return frozenset()
    damaged = {path.split("/")[0] for path in missing}
    return frozenset(
        name
        for name, part in now.parts.items()
        if name in recorded.parts
        and name not in damaged
        and recorded.parts[name].digest == part.digest
    )


def begin_parts(
    store: StageStore, context: Context, parts: Mapping[str, Fingerprint], *, afresh: bool
) -> None:
    """Give each part its folder: of the version in use, of an interrupted run, or an empty one.

    `afresh` leaves the work of interrupted runs.
    """
    for name, part in parts.items():
        folder = context.out_dir / name
        if context.current is not None and name in context.taken_over_parts:
            # The next run continues what a kill leaves, so a part appears whole.
            incomplete = context.out_dir / f".{name}.incomplete"
            shutil.copytree(context.current.folder / name, incomplete, copy_function=link_or_copy)
            incomplete.rename(folder)
        if not afresh:
            _continue_part(store, folder, part.digest)
        if not folder.exists():
            folder.mkdir()
            (folder / _PART).write_text(part.digest, encoding="utf-8")


def _continue_part(store: StageStore, folder: Path, digest: str) -> None:
    """Move the work of interrupted runs on a part to its new folder; the newest work prevails."""
    for version_folder in store.unfinished():
        interrupted = version_folder / folder.name
        if version_folder == folder.parent or _digest_of_part(interrupted) != digest:
            continue
        if folder.exists():
            shutil.rmtree(interrupted)
        else:
            interrupted.rename(folder)


def _digest_of_part(folder: Path) -> str | None:
    """Digest of the part that an interrupted run has begun in a folder; None if there is none."""
    try:
        return (folder / _PART).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
