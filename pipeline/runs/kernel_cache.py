"""The cache of kernel outputs, for later runs.

The kernels are the functions that compute the features of events. Their output for each file of
ingested events is kept, so that a later run of `features` computes only new files.

    <run_dir>/features/kernels/0002-1f0a93bc/part.arrow     written by the run of that version

Only the version in use passes outputs on, also those of earlier runs, so that an output which it
does not name is unused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from hep_core.storage import as_path
from pipeline.runs import own_folders
from pipeline.runs.counters import KernelCounters
from pipeline.runs.manifest import Manifest
from pipeline.runs.outputs import digest_of_file

#: Folder of the kernel outputs of all versions, below that of the stage.
KERNELS: Final = "kernels"


def kernel_output_digests(manifest: Manifest) -> dict[str, str]:
    """Return the digests of the kernel outputs that a version of `features` was made from.

    Returns:
        Digests by path below the folder of the stage, such as `kernels/0002-1f0a93bc/part.arrow`.
        The digest is empty for outputs of earlier releases, which recorded none.
    """
    counters = KernelCounters.model_validate(manifest.counters)
    return {
        f"{KERNELS}/{output.lies_in}/{Path(output.name).stem}.arrow": output.file_digest
        for output in counters.kernel_outputs
    }


def changed_kernel_outputs(stage_folder: Path, manifest: Manifest) -> list[Path]:
    """Return the kernel outputs of a version that are gone or whose bytes changed; reads all.

    `stage_folder` is the folder of the stage in the run folder.
    """
    folder = _folder_of_data(stage_folder, manifest)
    changed = []
    for path, recorded_digest in kernel_output_digests(manifest).items():
        digest = digest_of_file(folder / path)
        # An empty recorded digest is unknown, so the file only has to exist.
        if digest is None or recorded_digest not in {"", digest}:
            changed.append(folder / path)
    return changed


def _folder_of_data(stage_folder: Path, manifest: Manifest) -> Path:
    """Return the folder of the stage with the Parquet and the kernel outputs of a version.

    A version whose Parquet lies on object storage has its kernel outputs there too, whichever
    `storage` the config names by now.
    """
    for file in manifest.outputs:
        if file.lies_in:
            return as_path(file.lies_in).parent
    return stage_folder


class KernelOutputCache:
    """The kernel outputs in a run folder.

    Args:
        stage_folder: The folder of the stage.
        may_remove: Whether a folder there may be removed.
    """

    def __init__(self, stage_folder: Path, may_remove: Callable[[Path], bool]) -> None:
        self._stage_folder = stage_folder
        self._folder = stage_folder / KERNELS
        self._may_remove = may_remove

    def unused(self, current: Manifest | None) -> dict[Path, list[Path]]:
        """Find the files that the version in use does not name, and those left half written.

        These are outputs for events that were replaced, and outputs of runs that failed.

        Args:
            current: The manifest of the version in use; None if there is none.

        Returns:
            Removable files by folder. A folder with an empty list holds no outputs at all.
        """
        used = {} if current is None else kernel_output_digests(current)
        unused = {}
        for folder in sorted(self._folder.glob("*")):
            outputs = sorted(folder.glob("*.arrow"))
            unused_files = [
                path
                for path in outputs
                if path.relative_to(self._stage_folder).as_posix() not in used
            ]
            # A file that is being written has a hidden, temporary name.
            unfinished_files = folder.glob(".*.arrow.*")
            removable = [*unused_files, *unfinished_files]
            if (removable or not outputs) and self._may_remove(folder):
                unused[folder] = removable
        return unused

    def remove_unused(self, current: Manifest | None) -> None:
        """Remove unused files (see `unused`), and folders that then hold none.

        `current` is the manifest of the version in use; None if there is none.
        """
        unused = self.unused(current)
        for folder in unused:
            with own_folders.unclaimed([folder]) as unclaimed_folders:
                if folder in unclaimed_folders:
                    _remove_outputs(folder, unused[folder])
        # `rmdir` refuses a folder that still holds others.
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _remove_outputs(folder: Path, paths: Collection[Path]) -> None:
    """Remove some outputs of a folder, and the folder if it then holds none."""
    for path in paths:
        path.unlink(missing_ok=True)
    if all(path.name == own_folders.MARKER for path in folder.iterdir()):
        own_folders.remove(folder)
