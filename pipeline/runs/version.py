"""Versions: complete outputs of a stage, and promoted models, each a folder with a manifest."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from pydantic import BaseModel, TypeAdapter

from hep_core.integrity import DamagedOutputError
from pipeline.errors import RunFolderError
from pipeline.runs import own_folders
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.counters import Counters
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.manifest import (
    VERSION_NAME,
    Manifest,
    ModelManifest,
    RecordedConfig,
    StageManifest,
    read_manifest,
)
from pipeline.runs.outputs import OutputFile, damaged_files, matches_any
from pipeline.runs.state_files import check_document

MANIFEST: Final = "manifest.json"
AnyModel = TypeVar("AnyModel", bound=BaseModel)
AnyCounters = TypeVar("AnyCounters", bound=Counters)


@dataclass(frozen=True)
class OutputFolder:
    """A folder of files that a manifest names: the base of versions and promoted models."""

    name: str
    """Number and digest, such as `0002-1f0a93bc`; the folder has this name."""
    folder: Path
    manifest: Manifest

    @property
    def files(self) -> list[OutputFile]:
        """All files of the version except the manifest."""
        return self.manifest.outputs

    def files_like(self, patterns: Collection[str]) -> list[OutputFile]:
        """Its files whose paths match a pattern; `*` also matches slashes."""
        return [file for file in self.files if matches_any(file.path, patterns)]

    def verified(self, patterns: Collection[str] = ("*",)) -> Self:
        """Return this version, after a check of its files whose paths match a pattern.

        Large files are not read whole; see `damaged_files`.

        Raises:
            DamagedOutputError: A file is gone or not what was written.
        """
        self.check_files(self.files_like(patterns))
        return self

    def check_files(self, files: Collection[OutputFile]) -> None:
        """Refuse files of this version that are gone or not what was written.

        The version is claimed first, so that it stays as it is checked; see `own_folders.claim`.

        Raises:
            DamagedOutputError: There is such a file.
        """
        own_folders.claim(self.folder)
        for file in damaged_files(self.folder, files):
            raise self.damage_of(file)

    def damage_of(self, file: OutputFile) -> DamagedOutputError:
        """Return the error for a damaged file of this version, which the caller raises."""
        damage = "its content is another" if file.exists(self.folder) else "it is gone"
        return DamagedOutputError(file.location(self.folder), damage, self.writer)

    @property
    def writer(self) -> str:
        """The command that wrote it."""
        return "promote"


@dataclass(frozen=True)
class Version(OutputFolder):
    """A complete output of a stage."""

    manifest: StageManifest

    @property
    def writer(self) -> str:
        """The stage that wrote it."""
        return self.manifest.stage

    @property
    def made_from(self) -> Fingerprint:
        """The fingerprint of its inputs, also after `plan --accept` has replaced it."""
        return self.manifest.made_from or self.manifest.fingerprint

    def ran_same_code(self, *entry_points: str) -> bool:
        """Return whether the code of some modules, and of all that they import, is unchanged.

        Compared with the code that made this version, only comments and the like may differ; see
        `code_digests`.
        """
        recorded = self.made_from.code
        digests = code_digests(entry_points)
        return all(recorded.get(module) == digest for module, digest in digests.items())

    def counters(self, counters_type: type[AnyCounters]) -> AnyCounters:
        """Return the counters in its manifest as a class of `pipeline.runs.counters`.

        Raises:
            RunFolderError: A key is missing or wrong.
        """
        return self._read_key("counters", self.manifest.counters, counters_type)

    @property
    def config(self) -> RecordedConfig:
        """The config that it was made with.

        Raises:
            RunFolderError: A section is missing or wrong.
        """
        return self._read_key("config", self.manifest.config, RecordedConfig)

    def _read_key(self, key: str, section: dict[str, Any], model_type: type[AnyModel]) -> AnyModel:
        """Return a section of the manifest as a value of a pydantic class; `key` is its name."""
        remedy = f"`python -m pipeline {self.writer}` makes it again."
        path = self.folder / MANIFEST
        return check_document(section, TypeAdapter(model_type), path=path, remedy=remedy, key=key)


@dataclass(frozen=True)
class PromotedModel(OutputFolder):
    """A model in the registry."""

    manifest: ModelManifest


def check_output_files(path: Path) -> None:
    """Refuse a path in a version folder if the file, or a file below it, is damaged.

    The version is claimed, also an unfinished one; see `own_folders.claim`. A path that lies in no
    version folder is passed over: nobody knows what it should hold.

    Raises:
        DamagedOutputError: A file is gone or not what was written.
    """
    path = path.absolute()
    # The version is the path itself or a folder around it.
    for folder in (path, *path.parents):
        if not VERSION_NAME.fullmatch(folder.name):
            continue
        own_folders.claim(folder)
        version = _version_in(folder)
        if version is not None:
            inner_path = path.relative_to(folder).as_posix()
            patterns = ["*"] if inner_path == "." else [inner_path, f"{inner_path}/*"]
            version.verified(patterns)


def _version_in(folder: Path) -> Version | PromotedModel | None:
    """Return the version or promoted model in a folder.

    None if it holds no readable manifest of this release.
    """
    with suppress(RunFolderError):
        manifest = read_manifest(folder / MANIFEST, StageManifest, remedy="")
        if isinstance(manifest, StageManifest):
            return Version(folder.name, folder, manifest)
    with suppress(RunFolderError):
        manifest = read_manifest(folder / MANIFEST, ModelManifest, remedy="")
        if isinstance(manifest, ModelManifest):
            return PromotedModel(folder.name, folder, manifest)
    return None
