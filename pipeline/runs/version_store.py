"""Versions on disk: folders with a manifest each, and one small pointer file.

    <run_dir>/<stage>/current.json          the pointer: {"version": "0002-1f0a93bc"}
    <run_dir>/<stage>/0002-1f0a93bc/        a version; complete if it holds manifest.json, ours if
                                            it holds a marker

A version is written in place and becomes visible when the pointer is replaced, which is atomic.
Readers follow only the pointer, so a kill of a stage at any instant leaves the old version in use.
Only folders of ours are ever removed, and no symbolic link is followed for that.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from hep_core.atomic_files import write_atomically
from hep_core.input_errors import InputFileError
from pipeline.errors import RunFolderError, cannot_write
from pipeline.runs import own_folders
from pipeline.runs.manifest import (
    MANIFEST_VERSION,
    POINTER_TYPE,
    VERSION_NAME,
    Manifest,
    sealed_manifest,
)
from pipeline.runs.outputs import OutputFile
from pipeline.runs.own_folders import is_claimed
from pipeline.runs.state_files import damaged, read_json, read_state
from pipeline.runs.version import MANIFEST, OutputFolder

POINTER: Final = "current.json"
AnyVersion = TypeVar("AnyVersion", bound=OutputFolder)


class VersionStore(ABC, Generic[AnyVersion]):
    """Stores the versions of one stage, or the promoted models of one network.

    A version is a folder with a manifest; one of them is in use. See the module for the layout.

    Args:
        name: The stage or network.
        folder: The folder of its versions.
        holders: Folders in the run folder that hold the versions, and may be symbolic links.
    """

    def __init__(self, name: str, folder: Path, holders: Collection[Path]) -> None:
        self.name = name
        self.folder = folder
        self.pointer = folder / POINTER
        """The file that names the version in use."""
        self._holders = holders

    @abstractmethod
    def _read_version(self, name: str) -> AnyVersion | None:
        """Read a version; None if earlier code made it.

        Raises:
            RunFolderError: Its manifest is damaged.
        """

    @abstractmethod
    def _read_manifest(self, name: str) -> Manifest:
        """Read the manifest of a version.

        Raises:
            RunFolderError: It is gone or damaged.
        """

    @property
    def _remedy(self) -> str:
        """What to do about a damaged version."""
        return f"`python -m pipeline {self.name}` makes it again."

    # The version in use.

    def current(self) -> AnyVersion | None:
        """Return the version that the pointer names: the one in use.

        None before the first version, or if earlier code made it. It is claimed before it is read,
        so that `clean` leaves it; see `own_folders.claim`.

        Raises:
            RunFolderError: The pointer or the manifest is damaged.
        """
        name = self.name_in_use()
        if name is None:
            return None
        own_folders.claim(self.folder / name)
        return self._read_version(name)

    def readable_current(self) -> AnyVersion | None:
        """Return the version in use; None also if it is damaged, which `current` would raise."""
        try:
            return self.current()
        except RunFolderError:
            return None

    def name_in_use(self) -> str | None:
        """Return the name of the version in use; None if there is no pointer.

        Raises:
            RunFolderError: The pointer is damaged, or there is no such version.
        """
        # A symbolic link to nowhere is damage; `exists` would take it for a missing pointer.
        if not os.path.lexists(self.pointer):
            return None
        name = read_state(self.pointer, POINTER_TYPE, remedy=self._remedy).version
        folder = self.folder / name
        if not folder.is_dir():
            raise damaged(self.pointer, f"there is no folder {folder}", self._remedy)
        return name

    def is_in_use(self, folder: Path) -> bool:
        """Return whether the pointer names this version folder; no damaged pointer does."""
        try:
            return self.name_in_use() == folder.name
        except RunFolderError:
            return False

    def point_to(self, name: str) -> None:
        """Put a complete version in use."""
        write_atomically(self.pointer, {"version": name})

    # All versions.

    def version(self, name: str) -> AnyVersion | None:
        """Read the version of a name; None if it is gone or damaged, or if earlier code made it."""
        try:
            return self._read_version(name)
        except RunFolderError:
            return None

    def manifest_of(self, name: str) -> Manifest | None:
        """Read the manifest of a version, also of earlier code; None if it is gone or damaged."""
        try:
            return self._read_manifest(name)
        except RunFolderError:
            return None

    def names(self) -> list[str]:
        """Return the names of all versions, also of unfinished ones, in no certain order."""
        return [path.name for path in self._version_paths()]

    def complete(self) -> list[str]:
        """Return the names of all complete versions (those with a manifest), the oldest first."""
        names = [path.name for path in self._version_folders() if (path / MANIFEST).exists()]
        return sorted(names, key=number_of)

    def unfinished(self) -> list[Path]:
        """Return the version folders of ours without a manifest, the newest first.

        Killed runs left them, or a run is writing one now.
        """
        folders = [
            path
            for path in self._version_folders()
            if not (path / MANIFEST).exists() and own_folders.is_ours(path)
        ]
        return sorted(folders, key=lambda path: number_of(path.name), reverse=True)

    def holds(self, path: str, file: OutputFile) -> bool:
        """Return whether a path is that of a certain file in any version of this store.

        Args:
            path: The path or URL, for example of a file in which damage was found.
            file: The file of a version. On object storage its own URL is compared, else its path
                below the version folder, whichever version that is.
        """
        if file.lies_in:
            return path == f"{file.lies_in}/{file.path}"
        absolute, folder = Path(path).absolute(), self.folder.absolute()
        if not absolute.is_relative_to(folder):
            return False
        # The first part is the name of the version.
        _, *inner_parts = absolute.relative_to(folder).parts
        return Path(*inner_parts) == Path(file.path)

    # New versions.

    def next_folder(self, digest: str) -> Path:
        """Return the folder of the next version, which this does not create.

        Its name is the next number and the first 8 letters of `digest`, as in `0002-1f0a93bc`.
        """
        # Unfinished folders count: processes of a killed run must not find their folder again.
        newest_number = max(map(number_of, self.names()), default=0)
        return self.folder / f"{newest_number + 1:04d}-{digest[:8]}"

    def create(self, folder: Path, *, keep: Collection[Path] = (), note: str = "") -> None:
        """Create an empty version folder, and remove those that killed runs left.

        Args:
            folder: The new folder.
            keep: Folders of killed runs that stay.
            note: A text that is stored in the folder; see `own_folders.read_note`.

        Raises:
            RunFolderError: The disk cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            own_folders.make(folder, note)
            self.remove_unfinished(keep=[folder, *keep])
        except OSError as cause:
            raise cannot_write(self.folder, cause) from cause

    def publish(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        outputs: Iterable[OutputFile],
    ) -> AnyVersion:
        """Write the manifest of a version whose files are on the disk, and put it in use.

        Args:
            folder: The version folder.
            manifest: All keys but those about the files.
            outputs: The files of the version.

        Returns:
            The version, as it is read back from the disk.
        """
        document = sealed_manifest(
            {
                "manifest_version": MANIFEST_VERSION,
                **manifest,
                "outputs": [file._asdict() for file in outputs],
            }
        )
        write_atomically(folder / MANIFEST, document)
        self.point_to(folder.name)
        version = self._read_version(folder.name)
        if version is None:
            raise RuntimeError(f"{folder} was published as a version of earlier code")
        return version

    def update_manifest(self, version: OutputFolder, **changes: Any) -> None:
        """Replace keys of the manifest of a version on disk; `version` itself does not change."""
        path = version.folder / MANIFEST
        document = read_json(path, remedy=self._remedy)
        write_atomically(path, sealed_manifest({**document, **changes}))

    # Removal.

    def may_remove(self, folder: Path) -> bool:
        """Return whether a folder may be removed.

        It may if this code made it, no running job has claimed it, and the folders around it in
        the run folder are no symbolic links.
        """
        return own_folders.is_ours(folder) and not is_claimed(folder) and not self._is_linked()

    def remove_unfinished(self, *, keep: Collection[Path] = ()) -> None:
        """Remove version folders without a manifest, but for some to keep."""
        removable = [
            path for path in self.unfinished() if path not in keep and self.may_remove(path)
        ]
        with own_folders.unclaimed(removable) as unclaimed_folders:
            self.remove(unclaimed_folders)

    def remove(
        self, folders: Collection[Path], *, on_removed: Callable[[Path], None] = lambda _: None
    ) -> None:
        """Remove versions that are ours; `on_removed` is called with each folder afterwards.

        The caller holds them, so that nobody claims one meanwhile; see `own_folders.unclaimed`.
        All manifests come first, so that after a kill no half removed version counts as complete.
        """
        self._remove_manifests(folders)
        for folder in folders:
            own_folders.remove(folder)
            on_removed(folder)

    def discard(self, folder: Path) -> None:
        """Remove a version that the caller just created; the next run removes what this cannot."""
        with contextlib.suppress(OSError, InputFileError, RunFolderError):
            self.remove([folder])

    def _remove_manifests(self, folders: Collection[Path]) -> None:
        # After a kill, a version without its manifest is an unfinished one.
        for folder in folders:
            if own_folders.is_ours(folder):
                (folder / MANIFEST).unlink(missing_ok=True)

    def _is_linked(self) -> bool:
        return any(path.is_symlink() for path in self._holders)

    def _version_folders(self) -> list[Path]:
        return [path for path in self._version_paths() if path.is_dir()]

    def _version_paths(self) -> list[Path]:
        return [path for path in listed(self.folder) if VERSION_NAME.fullmatch(path.name)]


def listed(folder: Path) -> list[Path]:
    """Return the paths in a folder, in order; empty if there is no such folder.

    Unlike `glob`, this raises an error for a folder that cannot be read: if that seemed to be
    empty, all its stored files would count as unused and be removed.
    """
    return sorted(folder.iterdir()) if folder.is_dir() else []


def number_of(name: str) -> int:
    """Return the number in the name of a version, by which versions are ordered.

    As text, 10000 would come before 9999.

    Examples:
        >>> number_of("0002-1f0a93bc")
        2
    """
    return int(name.partition("-")[0])
