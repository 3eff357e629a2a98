"""The versions of one stage, with its files on object storage and its kernel outputs.

See `pipeline.runs.version_store`, `pipeline.runs.object_store` and `pipeline.runs.kernel_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import RunFolderError, cannot_write
from pipeline.runs import own_folders
from pipeline.runs.kernel_cache import (
    KernelOutputCache,
    changed_kernel_outputs,
    kernel_output_digests,
)
from pipeline.runs.manifest import Manifest, StageManifest, read_manifest
from pipeline.runs.object_store import ObjectStore
from pipeline.runs.outputs import EarlierFiles, OutputFile, written_files
from pipeline.runs.own_folders import is_claimed
from pipeline.runs.state_files import damaged
from pipeline.runs.version import MANIFEST, Version
from pipeline.runs.version_store import VersionStore, number_of


class StageStore(VersionStore[Version]):
    """Stores the versions (complete outputs) of one stage.

    Args:
        run_dir: The run folder.
        stage: The name of the stage.
        storage: The folder on object storage where its Parquet files go; None for the run folder.
    """

    def __init__(self, run_dir: Path, stage: str, *, storage: Path | None = None) -> None:
        folder = run_dir / stage
        super().__init__(stage, folder, [folder])
        self.objects = ObjectStore(storage / stage, folder) if storage else None
        self.kernels = KernelOutputCache(folder, self.may_remove)

    def data_folder(self, folder: Path) -> Path:
        """Return where the Parquet files of a version go.

        This is the version folder itself, or the folder of the same name on object storage.
        """
        return self.objects.root / folder.name if self.objects else folder

    def recovered(self) -> Version | None:
        """Return the newest complete version, after the pointer was set to it where necessary.

        The pointer is the file that names the version in use. A kill may come after a version is
        complete and before the pointer names it, or somebody damages the pointer.

        Returns:
            If no complete version of ours can be read, the version that the pointer names; None if
            it names none.

        Raises:
            RunFolderError: There is no such version, and the one in use is damaged.
        """
        current: Version | None = None
        damage: RunFolderError | None = None
        try:
            current = self.current()
        except RunFolderError as problem:
            damage = problem
        names = self.complete()
        newest = self.version(names[-1]) if names else None
        if newest is not None and own_folders.is_ours(newest.folder):
            if not self.is_in_use(newest.folder):
                self.point_to(newest.name)
            return newest
        if damage is not None:
            raise damage
        return current

    def create(self, folder: Path, *, keep: Collection[Path] = (), note: str = "") -> None:
        """Claim the storage if there is one, and create an empty version folder.

        See `ObjectStore.claim` and `VersionStore.create`.
        """
        if self.objects:
            try:
                self.objects.claim()
            except OSError as cause:
                raise cannot_write(self.folder, cause) from cause
        super().create(folder, keep=keep, note=note)

    def commit(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        *,
        volatile: Collection[str] = (),
        digests: Mapping[str, str] | None = None,
        taken_over: Iterable[OutputFile] = (),
        taken_over_parts: Collection[str] = (),
    ) -> Version:
        """Publish a finished version: flush its files to disk, write its manifest, set the pointer.

        A kill before the last step leaves the earlier version in use. Copies of the run folder from
        before the manifest do not know the version, so the commit renews the claim on the storage:
        before it, also for a kill just after the manifest, and after it, for copies from between.

        Args:
            folder: The version folder.
            manifest: All keys but those about the files.
            volatile: Keys of JSON files that are no content; see `Stage.volatile`.
            digests: Known digests of files on object storage.
            taken_over: Files on object storage that an earlier version wrote.
            taken_over_parts: Folders of files that the version in use wrote.

        Raises:
            StorageInUseError: Another run folder has claimed the storage since `create`, or at this
                moment.
        """
        outputs = written_files(
            folder,
            without={MANIFEST, own_folders.MARKER},
            earlier=self._earlier_files(taken_over_parts),
            volatile=volatile,
        )
        if self.objects:
            outputs += self.objects.written(folder.name, digests or {})
            outputs += taken_over
            self.objects.renew_claim()
        version = self.publish(folder, manifest, outputs)
        if self.objects:
            self.objects.renew_claim()
        return version

    def _earlier_files(self, copied_parts: Collection[str]) -> EarlierFiles:
        """Return the local files of the version in use, which a new version may share.

        `copied_parts` are folders of the new version whose files may be copies of them.
        """
        current = self.readable_current()
        if current is None:
            return EarlierFiles(self.folder, {})
        local_files = {file.path: file for file in current.files if not file.lies_in}
        return EarlierFiles(current.folder, local_files, copied_parts)

    def _read_version(self, name: str) -> Version | None:
        manifest = self._read_manifest(name)
        if not isinstance(manifest, StageManifest):
            return None
        return Version(name, self.folder / name, manifest)

    def _read_manifest(self, name: str) -> StageManifest | Manifest:
        path = self.folder / name / MANIFEST
        manifest = read_manifest(path, StageManifest, remedy=self._remedy)
        if isinstance(manifest, StageManifest) and manifest.stage != self.name:
            raise damaged(path, f"stage: it is that of '{manifest.stage}'", self._remedy)
        return manifest

    def remove(
        self, folders: Collection[Path], *, on_removed: Callable[[Path], None] = lambda _: None
    ) -> None:
        """Remove versions, and files on object storage that nothing names any more.

        `on_removed` is called with each folder after its removal.

        Raises:
            StorageInUseError: Another run folder claims the storage at this moment.
        """
        if self.objects:
            # A version without its manifest names no files any more.
            self._remove_manifests(folders)
            unused = self.unused_objects(without=folders)
            if unused:
                # Copies of the run folder from before the removal still name these objects.
                self.objects.renew_claim()
            self.objects.remove([path for sizes in unused.values() for path in sizes])
        super().remove(folders, on_removed=on_removed)

    def unused_objects(self, *, without: Collection[Path] = ()) -> dict[str, dict[str, int]]:
        """Find the objects that no complete version names; see `ObjectStore.unused`.

        If a manifest or the pointer is damaged, nobody knows what it names, and no object counts as
        unused. Neither do objects of versions that a running job has claimed, nor those of versions
        newer than all in the run folder, which another one must have written.

        Args:
            without: Folders of versions that are treated as if they were removed. They are held
                against claims, or nobody had claimed them.

        Returns:
            Sizes [bytes] by name of the version and path below the folder of the stage.
        """
        names = set(self.complete()) - {path.name for path in without}
        manifests = {name: self.manifest_of(name) for name in names}
        if self.objects is None or None in manifests.values() or self._is_linked():
            return {}
        used: set[str] = set()
        try:
            name_in_use = self.name_in_use()
            for name, manifest in manifests.items():
                if manifest is None:
                    continue
                used |= self.objects.paths_below(manifest.outputs)
                # Only the version in use passes kernel outputs on.
                if name == name_in_use:
                    used |= kernel_output_digests(manifest).keys()
            unused = self.objects.unused(used)
        except RunFolderError:
            return {}
        newest_number = max(map(number_of, self.names()), default=0)
        removable = {}
        for name, sizes in unused.items():
            folder = self.folder / name
            if number_of(name) <= newest_number and (folder in without or not is_claimed(folder)):
                removable[name] = sizes
        return removable

    def unused_kernel_outputs(self) -> dict[Path, list[Path]]:
        """Unused local kernel outputs, by folder; see `KernelOutputCache.unused`."""
        current = self.current()
        return self.kernels.unused(None if current is None else current.manifest)

    def remove_unused_kernel_outputs(self) -> None:
        """Remove unused local kernel outputs, and folders that hold no others."""
        current = self.current()
        self.kernels.remove_unused(None if current is None else current.manifest)

    def changed_kernel_outputs(self) -> list[Path]:
        """Return the kernel outputs of the version in use that are gone or changed; reads all.

        Kernel outputs are the cached results of the functions that compute features.
        """
        current = self.current()
        if current is None:
            return []
        return changed_kernel_outputs(self.folder, current.manifest)
