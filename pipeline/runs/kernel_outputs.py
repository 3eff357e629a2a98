"""Outputs of the kernels, one copy of each, beside the versions of the features stage.

    <run_dir>/features/kernels/0001-2c66f197/part.arrow     made by the run of that version

The manifest of a version names the outputs that it was made from (`counters.kernel_outputs`), also those that runs of
earlier versions made. Only the version in use can pass them on, so what it does not name is unused.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.runs import own_folders
from pipeline.runs.store import StageStore
from pipeline.runs.stored_files import KERNELS


class UnusedOutputs(NamedTuple):
    """Files of a folder that nothing in use names."""

    folder: Path
    files: list[Path]

    def remove(self) -> None:
        """Remove them, and the folder if it holds no others."""
        for path in self.files:
            path.unlink(missing_ok=True)
        if all(path.name == own_folders.MARKER for path in self.folder.iterdir()):
            own_folders.remove(self.folder)


def remove_unused_outputs(store: StageStore) -> None:
    """Remove all unused outputs, and the folder of all outputs if it is empty then."""
    for unused in unused_outputs(store):
        unused.remove()
    with suppress(OSError):
        (store.folder / KERNELS).rmdir()


def unused_outputs(store: StageStore) -> list[UnusedOutputs]:
    """Unused outputs in folders of ours: of replaced events, and of runs that failed or were killed."""
    current = store.current()
    named = [] if current is None else current.manifest.get("counters", {}).get("kernel_outputs", [])
    used = {(each["lies_in"], Path(each["name"]).with_suffix(".arrow").name) for each in named}
    found = []
    for folder in sorted((store.folder / KERNELS).glob("*")):
        files = [path for path in sorted(folder.glob("*.arrow")) if (folder.name, path.name) not in used]
        files += folder.glob(".*.arrow.*")
        if (files or not any(folder.glob("*.arrow"))) and store.may_remove(folder):
            found.append(UnusedOutputs(folder, files))
    return found
