"""Files of a stage on object storage, where the config names one (`storage`).

    <storage>/<stage>/made-by-hep-pipeline          claims the folder: random words that this run folder knows too
    <storage>/<stage>/0002-1f0a93bc/events/...      the files that the run of this version wrote
    <storage>/<stage>/kernels/0002-1f0a93bc/...     and its kernel outputs

Manifests stay in the run folder. They name all files of a version by URL, also those that earlier runs wrote, so a file
is there once. The first claim fails if the object exists, and every run writes new words: a second run folder, or an
older copy of this one, is refused before it writes. Objects are removed only where the claim is that of the run folder.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from hep_core.input_errors import RefusedFileError
from hep_core.integrity import file_digest
from hep_core.storage import file_sizes, path_to_fs, translate_fs_errors
from pipeline.errors import StorageInUseError
from pipeline.runs.outputs import OutputFile, footer_of
from pipeline.runs.own_folders import MARKER

#: Folder of the kernel outputs of all versions.
KERNELS: Final = "kernels"
_OBJECT: Final = re.compile(rf"(?:{KERNELS}/)?(?P<version>[0-9]{{4,}}-[0-9a-f]{{8}})/.+")


class StoredFiles:
    """The objects of one stage."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def refuse_others(self, known: Collection[str]) -> str:
        """The words of the claim; empty before the first one."""
        found, words = self._objects(), self._words()
        if words in known or not (words or found):
            return words
        raise StorageInUseError(
            f"{self.root} holds {min(found, default=MARKER)}, which this run folder does not know: another run folder "
            f"writes there, or the run folder that did is gone. Give each run folder a `storage` of its own, or remove "
            f"{self.root} if nothing needs it."
        )

    def claim(self, words: str, *, is_first: bool) -> None:
        """Write the words of the claim.

        Of several first claims only one succeeds.
        """
        system, name = path_to_fs(self.root / MARKER)
        with translate_fs_errors(self.root, "the storage"):
            try:
                # To create is a conditional PUT (If-None-Match).
                system.pipe_file(name, words.encode(), mode="create" if is_first else "overwrite")
            except FileExistsError as cause:
                raise StorageInUseError(
                    f"{self.root / MARKER} is there already: another run with the same `storage` was faster. Give "
                    f"each run folder a storage of its own, or begin again."
                ) from cause

    def written(self, version: str, digests: Mapping[str, str]) -> list[OutputFile]:
        """The files that the run of a version wrote, without kernel outputs."""
        folder = self.root / version

        def described(path: str, size: int) -> OutputFile:
            with translate_fs_errors(folder, path):
                digest = digests.get(path) or file_digest(folder / path)
                return OutputFile(path, size, digest, digest, str(folder), footer_of(folder / path))

        sizes = dict(sorted(file_sizes(folder).items()))
        # On object storage, the wait for an answer takes longer than all else.
        with ThreadPoolExecutor() as threads:
            return list(threads.map(described, sizes.keys(), sizes.values()))

    def unused(self, used: Collection[str], known: Collection[str]) -> dict[str, dict[str, int]]:
        """Sizes of the objects that nothing names, by version and path below the folder of the stage."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        is_ours = bool(known) and self._words() in known
        for path, size in self._objects().items() if is_ours else ():
            if path not in used:
                found[path.removeprefix(f"{KERNELS}/").partition("/")[0]][path] = size
        return dict(found)

    def remove(self, paths: Collection[str]) -> None:
        """Remove objects."""
        if not paths:
            return
        system, root = path_to_fs(self.root)
        with translate_fs_errors(self.root, "the storage"):
            system.rm([f"{root}/{path}" for path in paths])
        # s3fs passes over the objects that a server refuses to remove.
        if left := sorted(set(paths) & set(file_sizes(self.root))):
            raise RefusedFileError(
                f"{self.root / left[0]} cannot be removed: the server refuses it. Give the key the right to remove "
                f"objects (s3:DeleteObject), and run the command again."
            )

    def _objects(self) -> dict[str, int]:
        return {
            path: size for path, size in file_sizes(self.root).items() if _OBJECT.fullmatch(path)
        }

    def _words(self) -> str:
        """The words of the claim; empty before the first one."""
        with translate_fs_errors(self.root, "the storage"):
            try:
                return (self.root / MARKER).read_text(encoding="utf-8")
            except FileNotFoundError:
                return ""


def used_by(
    manifests: Iterable[dict[str, Any]], current: dict[str, Any] | None, root: Path
) -> set[str]:
    """Paths, below the folder of a stage, of the files on object storage that manifests name.

    Only the version in use, `current`, passes kernel outputs on.
    """
    used = {
        f"{each['lies_in']}/{each['path']}".removeprefix(f"{root}/")
        for manifest in manifests
        for each in manifest["outputs"]
        if each.get("lies_in")
    }
    return used | kernel_outputs_of(current or {}).keys()


def kernel_outputs_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the kernel outputs that a version was made from, by path below the folder of a stage."""
    outputs = manifest.get("counters", {}).get("kernel_outputs", [])
    return {
        f"{KERNELS}/{output['lies_in']}/{Path(output['name']).stem}.arrow": output.get(
            "file_digest", ""
        )
        for output in outputs
    }
