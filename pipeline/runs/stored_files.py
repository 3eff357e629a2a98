"""Files of a stage on object storage, where the config names one (`storage`).

    <storage>/<stage>/0002-1f0a93bc/made-by-hep-pipeline    claims the version; holds the same words as the local marker
    <storage>/<stage>/0002-1f0a93bc/events/...              the files that the run of this version wrote
    <storage>/<stage>/kernels/0002-1f0a93bc/...             and its kernel outputs
    <storage>/<stage>/0002.json                             publishes the version

Manifests stay in the run folder. They name all files of a version by URL, also those that earlier runs wrote, so a file
is there once. Claim and publication fail if the object is there already, so of two run folders with one storage one
learns of the other before it works, or at the latest before it publishes. Only objects of versions that this run folder
has claimed are ever removed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ingestion.errors import RefusedFileError
from ingestion.storage import answers, file_digest, on_system, sizes_below
from pipeline.errors import StorageInUseError
from pipeline.runs.outputs import OutputFile
from pipeline.runs.own_folders import MARKER

#: Folder of the kernel outputs of all versions.
KERNELS: Final = "kernels"
_OBJECT: Final = re.compile(rf"(?:{KERNELS}/)?(?P<version>[0-9]{{4,}}-[0-9a-f]{{8}})/.+")
_POINTER: Final = re.compile(r"[0-9]{4,}\.json")


class UnusedFiles(NamedTuple):
    """Objects of a version that no manifest names."""

    version: str
    sizes: dict[str, int]
    """By path below the folder of the stage; the marker comes last."""


class StoredFiles:
    """The objects of one stage.

    Args:
        root: Folder of the stage, from `ingestion.storage.place`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse a storage with versions that this run folder does not know.

        Args:
            known: Names of the versions of the run folder, also unfinished ones.

        Raises:
            StorageInUseError: There is such a version.
            IngestionError: The storage cannot be listed.
        """
        pointers = {_pointer(name) for name in known}
        unknown = set()
        for path in sizes_below(self.root):
            # A late task of a killed run may leave an object without a marker.
            if path.endswith(f"/{MARKER}") and (version := version_of(path)) and version not in known:
                unknown.add(version)
            if _POINTER.fullmatch(path) and path not in pointers:
                unknown.add(path)
        if unknown:
            raise StorageInUseError(
                f"{self.root} holds {min(unknown)}, which this run folder does not know: another run folder writes "
                f"there, or the run folder that did is gone. Give each run folder a `storage` of its own, or remove "
                f"{self.root} if nothing needs it."
            )

    def claim(self, version: str, words: str) -> None:
        """Make the marker of a version, which nobody else can make then.

        Raises:
            StorageInUseError: It is there already.
            IngestionError: The storage cannot be written.
        """
        self._create(f"{version}/{MARKER}", words)

    def publish(self, version: str) -> None:
        """Make the pointer to a version, which nobody else can make then.

        Raises:
            StorageInUseError: It is there already.
            IngestionError: The storage cannot be written.
        """
        self._create(_pointer(version), _publication(version))

    def _create(self, path: str, words: str) -> None:
        system, name = on_system(self.root / path)
        with answers(self.root, "the storage"):
            try:
                # A conditional PUT (If-None-Match).
                system.pipe_file(name, words.encode(), mode="create")
            except FileExistsError as cause:
                if self._words(path) == words:
                    # Ours: the answer to the first attempt was lost.
                    return
                raise StorageInUseError(
                    f"{self.root / path} is there already: another run with the same `storage` was faster. Nothing of "
                    f"it was changed, and nothing of this run was published. Give each run folder a storage of its own."
                ) from cause

    def written(self, version: str, digests: Mapping[str, str]) -> list[OutputFile]:
        """The files that the run of a version wrote, without kernel outputs.

        Args:
            version: Name of the version.
            digests: Digests of files that are known, by path; the others are read.
        """
        folder = self.root / version
        files = []
        for path, size in sorted(sizes_below(folder).items()):
            if path != MARKER:
                with answers(folder, path):
                    digest = digests.get(path) or file_digest(folder / path)
                files.append(OutputFile(path, size, digest, digest, str(folder)))
        return files

    def unused(self, claims: Mapping[str, str], used: set[str], complete: Collection[str]) -> list[UnusedFiles]:
        """Objects of this run folder that nothing names.

        Args:
            claims: By version of the run folder, the words in its local marker.
            used: Paths of files that are named, below the folder of the stage.
            complete: Versions that are complete; the pointers to others, and their markers, are unused.
        """
        objects: defaultdict[str, dict[str, int]] = defaultdict(dict)
        pointers = {}
        for path, size in sizes_below(self.root).items():
            if there := _OBJECT.fullmatch(path):
                objects[there["version"]][path] = size
            elif _POINTER.fullmatch(path):
                pointers[path] = size
        found = []
        for version, sizes in objects.items():
            marker = f"{version}/{MARKER}"
            gone = {path: size for path, size in sizes.items() if path not in used and path != marker}
            pointer = _pointer(version)
            if version not in complete and pointer in pointers and self._words(pointer) == _publication(version):
                gone[pointer] = pointers[pointer]
            # The marker of a complete version stays, even if all its files are those of earlier ones.
            if version not in complete and marker in sizes and used.isdisjoint(sizes):
                gone[marker] = sizes[marker]
            if gone and marker in sizes and claims.get(version) and self._words(marker) == claims[version]:
                found.append(UnusedFiles(version, gone))
        return found

    def remove(self, unused: Iterable[UnusedFiles]) -> None:
        """Remove objects; the marker comes last, so that the rest after a kill is still ours.

        Raises:
            RefusedFileError: The server leaves some of them.
            IngestionError: The storage cannot be written.
        """
        system, root = on_system(self.root)
        names = [path for each in unused for path in each.sizes]
        markers = [name for name in names if name.endswith(f"/{MARKER}")]
        for some in ([name for name in names if name not in markers], markers):
            if some:
                with answers(self.root, "the storage"):
                    system.rm([f"{root}/{name}" for name in some])
                # s3fs passes over the objects that a server refuses to remove.
                if left := sorted(set(some) & set(sizes_below(self.root))):
                    raise RefusedFileError(
                        f"{self.root / left[0]} cannot be removed: the server refuses it. Give the key the right to "
                        f"remove objects (s3:DeleteObject), and run the command again."
                    )

    def _words(self, path: str) -> str:
        with answers(self.root, "the storage"):
            return (self.root / path).read_text(encoding="utf-8")


def used_by(manifests: Iterable[dict[str, Any]], current: dict[str, Any] | None, root: Path) -> set[str]:
    """Paths, below the folder of a stage, of the files on object storage that manifests name.

    Args:
        manifests: The manifests of all complete versions.
        current: That of the version in use; only this one passes kernel outputs on.
        root: Folder of the stage.
    """
    used = {
        f"{each['lies_in']}/{each['path']}".removeprefix(f"{root}/")
        for manifest in manifests
        for each in manifest["outputs"]
        if "lies_in" in each
    }
    outputs = [] if current is None else current.get("counters", {}).get("kernel_outputs", [])
    return used | {f"{KERNELS}/{each['lies_in']}/{Path(each['name']).stem}.arrow" for each in outputs}


def version_of(path: str) -> str:
    """The version whose folder holds an object, given by its path below the folder of the stage.

    Examples:
        >>> version_of("kernels/0002-1f0a93bc/a.arrow"), version_of("0002-1f0a93bc/events/a.parquet")
        ('0002-1f0a93bc', '0002-1f0a93bc')
    """
    found = _OBJECT.fullmatch(path)
    return found["version"] if found else ""


def _pointer(version: str) -> str:
    return f"{version.partition('-')[0]}.json"


def _publication(version: str) -> str:
    return json.dumps({"version": version})
