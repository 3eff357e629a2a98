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

#: File in the folder of a part with the digest of everything that it depends on.
_PART: Final = "made-from"


def unchanged_parts(
    recorded: Fingerprint | None, now: Fingerprint, missing: Iterable[str]
) -> frozenset[str]:
    """Return the names of the parts of the version in use that need not be made again.

    Such a part has the same inputs, config values and code as now, and no damaged file.

    Args:
        recorded: The fingerprint of the version in use; None if there is none.
        now: The fingerprint that the stage would have now.
        missing: Paths of files of that version that are gone or damaged. They begin with the name
            of their part.
    """
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
    """Give each part its folder in the new version.

    An unchanged part is copied from the version in use (by hard links where possible). Otherwise
    the folder of an interrupted run with the same inputs, config and code is moved here. If there
    is none, the folder is empty but for a file with the digest of these.

    Args:
        store: The versions of the stage.
        context: The context of the stage.
        parts: The fingerprint of each part, by name.
        afresh: Whether the work of interrupted runs is left where it is.
    """
    for name, part in parts.items():
        folder = context.out_dir / name
        if context.current is not None and name in context.taken_over_parts:
            # After a kill, the next run would continue a half copied part, so it appears whole.
            incomplete = context.out_dir / f".{name}.incomplete"
            shutil.copytree(context.current.folder / name, incomplete, copy_function=link_or_copy)
            incomplete.rename(folder)
        if not afresh:
            _continue_part(store, folder, part.digest)
        if not folder.exists():
            folder.mkdir()
            (folder / _PART).write_text(part.digest, encoding="utf-8")


def _continue_part(store: StageStore, folder: Path, digest: str) -> None:
    """Move the work of an interrupted run on a part to its new folder.

    The newest such work is taken, and older work on the same part is removed. So is all of it if
    the folder exists already.

    Args:
        store: The versions of the stage.
        folder: The new folder of the part.
        digest: The digest of the part; only work with the same one counts.
    """
    # Unfinished folders come with the newest first.
    for version_folder in store.unfinished():
        interrupted = version_folder / folder.name
        if version_folder == folder.parent or _digest_of_part(interrupted) != digest:
            continue
        if folder.exists():
            shutil.rmtree(interrupted)
        else:
            interrupted.rename(folder)


def _digest_of_part(folder: Path) -> str | None:
    """Return the digest with which a run began a part in a folder; None if it began none."""
    try:
        return (folder / _PART).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
