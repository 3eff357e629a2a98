"""Outputs of the kernels, one copy of each, beside the versions of the features stage.

    <run_dir>/features/kernels/0001-2c66f197/part.arrow     made by the run of that version

The manifest of a version names the outputs that it was made from (`counters.kernel_outputs`), also those that runs of
earlier versions made. Only the version in use can pass them on, so what it does not name is unused.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pipeline.runs import own_folders
from pipeline.runs.store import StageStore
from pipeline.runs.stored_files import KERNELS


def remove_unused_outputs(store: StageStore) -> None:
    """Remove all unused outputs, and folders that hold no others."""
    for folder, files in unused_outputs(store).items():
        for path in files:
            path.unlink(missing_ok=True)
        if all(path.name == own_folders.MARKER for path in folder.iterdir()):
            own_folders.remove(folder)
    with suppress(OSError):
        (store.folder / KERNELS).rmdir()


def unused_outputs(store: StageStore) -> dict[Path, list[Path]]:
    """Unused outputs of the features stage by folder of ours: of replaced events, and of runs that failed."""
    current = store.current()
    named = [] if current is None else current.manifest.get("counters", {}).get("kernel_outputs", [])
    used = {(each["lies_in"], Path(each["name"]).with_suffix(".arrow").name) for each in named}
    found = {}
    for folder in sorted((store.folder / KERNELS).glob("*")):
        files = [path for path in sorted(folder.glob("*.arrow")) if (folder.name, path.name) not in used]
        files += folder.glob(".*.arrow.*")
        if (files or not any(folder.glob("*.arrow"))) and store.may_remove(folder):
            found[folder] = files
    return found
