"""Outputs of a stage on disk: version folders with a manifest each, and one small pointer file.

    <run_dir>/<stage>/current.json          the pointer: {"version": "0002-1f0a93bc"}
    <run_dir>/<stage>/0002-1f0a93bc/        a version; complete if it holds manifest.json, ours if it holds a marker
    <run_dir>/features/kernels/0002-1f0a93bc/part.arrow     an output of the kernels, which the run of that version made

With a `storage` in the config, the Parquet of some stages lies there; see `pipeline.runs.stored_files`.

A version is written in place and becomes visible when the pointer is replaced, which is atomic. Readers follow only the
pointer, so a kill of a stage at any instant leaves the old version in use. Only folders of ours are ever removed, and
no symbolic link is followed for that.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from pydantic import TypeAdapter

from hep_core.atomic_files import write_atomically
from hep_core.input_errors import InputFileError
from hep_core.integrity import DamagedOutputError
from pipeline.errors import RunFolderError, cannot_write
from pipeline.runs import own_folders
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.manifest import (
    MANIFEST_VERSION,
    POINTER_KIND,
    VERSION_NAME,
    ModelManifest,
    StageManifest,
    read_manifest,
    sealed_manifest,
)
from pipeline.runs.outputs import OutputFile, damaged_files, digest_of_file, written_files
from pipeline.runs.own_folders import is_claimed
from pipeline.runs.state_files import damaged, read_state
from pipeline.runs.stored_files import KERNELS, StoredFiles, kernel_outputs_of, used_by

POINTER: Final = "current.json"
MANIFEST: Final = "manifest.json"
#: File with the words of the claims on object storage, by folder there.
_CLAIMS: Final = "storage.json"
_CLAIMS_KIND: Final = TypeAdapter(dict[str, list[str]])


class Version(NamedTuple):
    """A complete output of a stage."""

    name: str
    folder: Path
    manifest: dict[str, Any]

    @property
    def made_from(self) -> dict[str, Any]:
        """The fingerprint of the inputs it was made from, also after `plan --accept` replaced the fingerprint."""
        made_from: dict[str, Any] = self.manifest.get("made_from") or self.manifest["fingerprint"]
        return made_from

    def ran_same_code(self, *entry_points: str) -> bool:
        """Whether the meaning of all imports of some entry points is the same as when this version was made."""
        before = self.made_from["code"]
        return all(
            before.get(name) == digest for name, digest in code_digests(entry_points).items()
        )

    @property
    def files(self) -> list[OutputFile]:
        """All files of the version except the manifest."""
        return [OutputFile(**each) for each in self.manifest["outputs"]]

    def verified(self, patterns: Collection[str] = ("*",)) -> Self:
        """This version, whose files of some patterns are what was written; `*` also matches slashes.

        Raises:
            DamagedOutputError: One is not, or is gone.
        """
        self.refuse_damage(self.files_like(patterns))
        return self

    def files_like(self, patterns: Collection[str]) -> list[OutputFile]:
        """Its files of some patterns."""
        return [
            file
            for file in self.files
            if any(fnmatchcase(file.path, pattern) for pattern in patterns)
        ]

    def refuse_damage(self, files: Collection[OutputFile]) -> None:
        """Refuse files of this version that are not what was written; see `verified`."""
        for file in damaged_files(self.folder, files):
            raise self.damage_of(file)

    def damage_of(self, file: OutputFile) -> DamagedOutputError:
        """The error for a damaged file of this version."""
        place = file.place(self.folder)
        what = "its content is another" if file.is_there(self.folder) else "it is gone"
        return DamagedOutputError(place, what, self.writer)

    @property
    def writer(self) -> str:
        """The command that wrote it: a stage, or `promote` for a model in use."""
        return str(self.manifest.get("stage", "promote"))


class StageStore:
    """The versions of one stage.

    The Parquet of the stage goes to `storage`, if there is one.
    """

    kind: ClassVar[type[StageManifest | ModelManifest]] = StageManifest
    """What a manifest says."""
    subject: ClassVar[str] = "stage"
    """The key of a manifest that names the stage."""

    def __init__(
        self, run_dir: Path, stage: str, *, group: str = "", storage: Path | None = None
    ) -> None:
        self.stage = stage
        self.stored = StoredFiles(storage / stage) if storage else None
        self.folder = run_dir / group / stage
        self.pointer = self.folder / POINTER
        """The file that names the version in use."""
        self._holders = [run_dir / each for each in (group, Path(group, stage)) if each]

    def current(self) -> Version | None:
        """The version that the pointer names; None before the first, or if earlier code made it.

        Raises:
            RunFolderError: The pointer or the manifest is damaged.
        """
        name = self.name_in_use()
        if name is None:
            return None
        manifest = self._manifest(name)
        # The stage runs again if earlier code made it.
        if manifest["manifest_version"] < MANIFEST_VERSION:
            return None
        return Version(name, self.folder / name, manifest)

    def holds(self, path: str, file: OutputFile) -> bool:
        """Whether a path is that of a file of a version, or of another version that has taken it over."""
        if file.lies_in:
            return path == f"{file.lies_in}/{file.path}"
        inside, folder = Path(path).absolute(), self.folder.absolute()
        return inside.is_relative_to(folder) and Path(
            *inside.relative_to(folder).parts[1:]
        ) == Path(file.path)

    def recovered(self) -> Version | None:
        """The version in use; the pointer is first set to a newer complete one, which a kill left without it.

        A damaged pointer is set to the newest complete version.

        Raises:
            RunFolderError: The version in use is damaged.
        """
        current = damage = None
        try:
            current = self.current()
        except RunFolderError as problem:
            damage = problem
        for name in self.complete()[-1:]:
            made_here = (self.manifest_of(name) or {}).get("manifest_version") == MANIFEST_VERSION
            if (
                name != (current and current.name)
                and made_here
                and own_folders.is_ours(self.folder / name)
            ):
                self.point_to(name)
                return self.current()
        if damage is not None:
            raise damage
        return current

    def names(self, folder: Path) -> bool:
        """Whether the pointer names this version folder."""
        try:
            return self.name_in_use() == folder.name
        except RunFolderError:
            return False

    def name_in_use(self) -> str | None:
        """The version that the pointer names; None if there is no pointer.

        Raises:
            RunFolderError: The pointer is damaged, or leads to no folder of a version of this stage.
        """
        if not os.path.lexists(self.pointer):
            return None
        name = read_state(self.pointer, POINTER_KIND, remedy=self._remedy).version
        folder = self.folder / name
        if not folder.is_dir():
            raise damaged(self.pointer, f"there is no folder {folder}", self._remedy)
        return name

    @property
    def _remedy(self) -> str:
        """What to do about a damaged version."""
        return f"`python -m pipeline {self.stage}` makes it again."

    def next_folder(self, digest: str) -> Path:
        """Folder of the next version; this makes nothing."""
        # Unfinished folders count: processes of a killed run must not find their folder again.
        numbers = [number_of(path.name) for path in self._named_like_versions()]
        return self.folder / f"{max(numbers, default=0) + 1:04d}-{digest[:8]}"

    def data_of(self, folder: Path) -> Path:
        """Folder of the Parquet of a version: the version folder, or one on object storage."""
        return self.stored.root / folder.name if self.stored else folder

    def begin(self, folder: Path, *, but: Collection[Path] = ()) -> None:
        """Make an empty version folder, and remove those of killed runs, but for some."""
        try:
            if self.stored:
                self._claim(self.stored)
            self.folder.mkdir(parents=True, exist_ok=True)
            own_folders.make(folder)
            self.remove_unfinished(but=[folder, *but])
        except OSError as cause:
            raise cannot_write(self.folder, cause) from cause

    def commit(
        self,
        folder: Path,
        manifest: dict[str, Any],
        *,
        digests: Mapping[str, str] | None = None,
        taken_over: Iterable[OutputFile] = (),
        taken_over_parts: Collection[str] = (),
    ) -> Version:
        """Publish a finished version: flush its files to disk, then the manifest, then the pointer.

        `digests` of files on object storage are known; an earlier version wrote those `taken_over`. The version in use
        wrote what lies in the folders of `taken_over_parts`.
        """
        earlier: tuple[Path, list[OutputFile]] = (self.folder, [])
        with contextlib.suppress(RunFolderError, KeyError):
            if version := self.current():
                earlier = version.folder, version.files
        but = {MANIFEST, own_folders.MARKER}
        files = written_files(folder, but, earlier=earlier, taken_over_parts=taken_over_parts)
        if self.stored:
            files += [*self.stored.written(folder.name, digests or {}), *taken_over]
        outputs = [each._asdict() for each in files]
        manifest = sealed_manifest(
            {"manifest_version": MANIFEST_VERSION, **manifest, "outputs": outputs}
        )
        write_atomically(folder / MANIFEST, manifest)
        self.point_to(folder.name)
        return Version(folder.name, folder, manifest)

    def complete(self) -> list[str]:
        """Names of all complete versions, the oldest first."""
        return sorted(
            (path.name for path in self._versions() if (path / MANIFEST).exists()), key=number_of
        )

    def manifest_of(self, name: str) -> dict[str, Any] | None:
        """Manifest of a version; None if it is gone or damaged."""
        try:
            return self._manifest(name)
        except RunFolderError:
            return None

    def _manifest(self, name: str) -> dict[str, Any]:
        path = self.folder / name / MANIFEST
        manifest = read_manifest(path, self.kind, remedy=self._remedy)
        subject = manifest.get(self.subject, self.stage)
        if subject != self.stage:
            raise damaged(path, f"{self.subject}: it is that of '{subject}'", self._remedy)
        return manifest

    def point_to(self, name: str) -> None:
        """Put a complete version in use."""
        write_atomically(self.pointer, {"version": name})

    def rewrite_manifest(self, version: Version, manifest: dict[str, Any]) -> None:
        """Replace the manifest of a version (`plan --accept`)."""
        write_atomically(version.folder / MANIFEST, sealed_manifest(manifest))

    def remove_unfinished(self, *, but: Collection[Path] = ()) -> None:
        """Remove version folders without a manifest."""
        self.remove(
            [path for path in self.unfinished() if path not in but and self.may_remove(path)]
        )

    def unfinished(self) -> list[Path]:
        """Version folders of ours without a manifest, which killed runs left, the newest first."""
        found = [
            path
            for path in self._versions()
            if not (path / MANIFEST).exists() and own_folders.is_ours(path)
        ]
        return sorted(found, key=lambda path: number_of(path.name), reverse=True)

    def remove(
        self, folders: Collection[Path], *, on_removed: Callable[[Path], None] = lambda _: None
    ) -> None:
        """Remove versions, and files on object storage that nothing names any more."""
        for folder in filter(own_folders.is_ours, folders):
            # First the manifest: after a kill, the rest is an unfinished version.
            (folder / MANIFEST).unlink(missing_ok=True)
        if self.stored:
            self.stored.remove([path for sizes in self.unused_files().values() for path in sizes])
        for folder in folders:
            own_folders.remove(folder)
            on_removed(folder)

    def unused_files(self, without: Collection[Path] = ()) -> dict[str, dict[str, int]]:
        """Sizes of the files on object storage that no complete version names; see `StoredFiles.unused`.

        The versions in `without` do not count.
        """
        names = set(self.complete()) - {path.name for path in without}
        manifests = {
            name: manifest for name in names if (manifest := self.manifest_of(name)) is not None
        }
        if self.stored is None or len(manifests) < len(names) or self._is_linked():
            return {}
        try:
            current, claims = self.name_in_use() or "", self._claims()
        except RunFolderError:
            return {}
        used = used_by(manifests.values(), manifests.get(current), self.stored.root)
        unused = self.stored.unused(used, claims.get(str(self.stored.root), ()))
        return {name: sizes for name, sizes in unused.items() if not is_claimed(self.folder / name)}

    def _claim(self, stored: StoredFiles) -> None:
        """Claim the storage for this run folder, by new words each time: a copy of the run folder has the old ones."""
        claims, root = self._claims(), str(stored.root)
        before, new = stored.refuse_others(claims.get(root, ())), uuid.uuid4().hex
        self.folder.mkdir(parents=True, exist_ok=True)
        # A kill may come before the new words are there.
        write_atomically(
            self.folder / _CLAIMS, {**claims, root: [each for each in (before, new) if each]}
        )
        stored.claim(new, is_first=not before)

    def _claims(self) -> dict[str, list[str]]:
        """Words that this run folder wrote, by the folder on object storage."""
        path = self.folder / _CLAIMS
        if not os.path.lexists(path):
            return {}
        return read_state(
            path, _CLAIMS_KIND, remedy="Restore it from a backup, or choose another `storage`."
        )

    def may_remove(self, folder: Path) -> bool:
        """Whether a folder is ours, no running job claims it, and no symbolic link in the run folder leads to it."""
        return own_folders.is_ours(folder) and not is_claimed(folder) and not self._is_linked()

    def _is_linked(self) -> bool:
        return any(path.is_symlink() for path in self._holders)

    def discard(self, folder: Path) -> None:
        """Remove a version that was just made; the next run removes what this cannot."""
        with contextlib.suppress(OSError, InputFileError):
            self.remove([folder])

    def unused_outputs(self) -> dict[Path, list[Path]]:
        """Unused local outputs of the kernels by folder of ours: of replaced events, and of runs that failed.

        Only the version in use passes outputs on, also those of earlier runs, so what it does not name is unused.
        """
        current = self.current()
        used = kernel_outputs_of({} if current is None else current.manifest)
        found = {}
        for folder in sorted((self.folder / KERNELS).glob("*")):
            there = sorted(folder.glob("*.arrow"))
            files = [path for path in there if path.relative_to(self.folder).as_posix() not in used]
            files += folder.glob(".*.arrow.*")
            if (files or not there) and self.may_remove(folder):
                found[folder] = files
        return found

    def changed_kernel_outputs(self, version: Version) -> list[Path]:
        """Outputs of the kernels that a version was made from and that are missing or changed; reads all of them.

        Of those of earlier releases no digest is known: only a missing one is seen.
        """
        folder = self.stored.root if self.stored else self.folder
        outputs = kernel_outputs_of(version.manifest)
        changed = []
        for path, known in outputs.items():
            digest = digest_of_file(folder / path)
            if digest is None or known not in {"", digest}:
                changed.append(folder / path)
        return changed

    def remove_unused_outputs(self) -> None:
        """Remove unused local outputs of the kernels, and folders that hold no others."""
        for folder, files in self.unused_outputs().items():
            for path in files:
                path.unlink(missing_ok=True)
            if all(path.name == own_folders.MARKER for path in folder.iterdir()):
                own_folders.remove(folder)
        with contextlib.suppress(OSError):
            (self.folder / KERNELS).rmdir()

    def _versions(self) -> list[Path]:
        return [path for path in self._named_like_versions() if path.is_dir()]

    def _named_like_versions(self) -> list[Path]:
        return [path for path in listed(self.folder) if VERSION_NAME.fullmatch(path.name)]


def verify_below(path: Path) -> None:
    """Refuse a file or folder of a version that is not what was written; what lies elsewhere is not known here.

    Raises:
        DamagedOutputError: A file is damaged or gone.
    """
    path = path.absolute()
    for folder in (path, *path.parents):
        if not VERSION_NAME.fullmatch(folder.name):
            continue
        inside = path.relative_to(folder).as_posix()
        patterns = ["*"] if inside == "." else [inside, f"{inside}/*"]
        for kind in (StageManifest, ModelManifest):
            with contextlib.suppress(RunFolderError):
                manifest = read_manifest(folder / MANIFEST, kind, remedy="")
                Version(folder.name, folder, manifest).verified(patterns)


def listed(folder: Path) -> list[Path]:
    """What lies in a folder, which may not be there.

    `glob` hides errors, and of a folder that seems to be empty all stored files would be removed.
    """
    return sorted(folder.iterdir()) if folder.is_dir() else []


def number_of(name: str) -> int:
    """Number of a version, by which versions are ordered: as text, 10000 is before 9999.

    Examples:
        >>> number_of("0002-1f0a93bc")
        2
    """
    return int(name.partition("-")[0])
