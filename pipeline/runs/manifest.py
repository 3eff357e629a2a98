"""The manifests of versions, and the pointer to the version in use."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
)

from hep_core.integrity import SEAL, has_seal, with_seal
from hep_core.secrets import redact_all
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.outputs import OutputFile
from pipeline.runs.state_files import check_document, damaged, read_json

MANIFEST_VERSION: Final = 3
#: Pattern of the names of versions.
VERSION_NAME: Final = re.compile(r"([0-9]{4,})-[0-9a-f]{8}")


def _check_version_name(name: str) -> str:
    """Return the name of a version unchanged, or refuse it, for pydantic."""
    if not VERSION_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is no name of a version, such as 0002-1f0a93bc")
    return name


def _check_paths_inside(files: list[OutputFile]) -> list[OutputFile]:
    """Return the files of a version unchanged, or refuse a path that leads out of its folder."""
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{file.path}' leads out of the folder of the version")
    return files


VersionName = Annotated[str, AfterValidator(_check_version_name)]
Outputs = Annotated[list[OutputFile], AfterValidator(_check_paths_inside)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Time = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat)]


class Pointer(BaseModel):
    """The content of `current.json`."""

    version: VersionName


class Manifest(BaseModel):
    """The keys that are used of every manifest, whichever release wrote it."""

    model_config = ConfigDict(extra="allow")

    manifest_version: int
    outputs: Outputs = []
    upstream: dict[str, VersionName] = {}
    """Names, by stage, of the versions of other stages that a version of a stage was made from."""
    train: VersionName | None = None
    """The training that a promoted model comes from."""
    counters: dict[str, Any] = {}
    seal: str | None = None
    """Digest of all other keys; manifests of earlier code have none."""

    @property
    def sources(self) -> dict[str, str]:
        """Versions that a version or model was made from, by stage."""
        return self.upstream if self.train is None else {"train": self.train}


class _RecordedCheck(BaseModel):
    """A condition that a stage checked on its output; see `pipeline.stages.base.Check`."""

    name: str
    passed: bool
    detail: str


class Acceptance(BaseModel):
    """The record of a `plan --accept`, which declares a stale version up to date."""

    when: Time
    reasons: list[str]
    """Why the version was stale."""


class StageManifest(Manifest):
    """The manifest of a version of a stage."""

    manifest_version: Literal[3]
    outputs: Outputs
    code_version: str
    stage: str
    created: Time
    seconds: Seconds
    command: list[str]
    fingerprint: Fingerprint
    accepted: Acceptance | None = None
    made_from: Fingerprint | None = None
    """The first fingerprint, if `plan --accept` has replaced it."""
    upstream: dict[str, VersionName]
    config: dict[str, Any]
    packages: dict[str, str]
    inputs: list[dict[str, Any]]
    counters: dict[str, Any]
    checks: list[_RecordedCheck]


class Improvement(BaseModel):
    """The decrease of the mean cross-entropy from the model used before to the promoted one."""

    value: float
    error: float


class ModelManifest(Manifest):
    """The manifest of a promoted model."""

    manifest_version: Literal[3]
    outputs: Outputs
    code_version: str
    network: str
    train: VersionName
    promoted: Time
    improvement: Improvement | None
    withdrawn: Time | None = None
    """When the model was rolled back."""


class RecordedConfig(BaseModel):
    """The sections of a config in a manifest that other stages read."""

    classes: list[str]
    samples: list[dict[str, Any]]
    ingest: dict[str, Any]
    features: dict[str, Any]


AnyManifest = TypeVar("AnyManifest", bound=Manifest)
POINTER_TYPE: Final = TypeAdapter(Pointer)
_EARLIER_TYPE: Final = TypeAdapter(Manifest)


def read_manifest(
    path: Path, manifest_type: type[AnyManifest], *, remedy: str
) -> AnyManifest | Manifest:
    """Read and check a manifest.

    Args:
        path: The file `manifest.json`.
        manifest_type: The type that a manifest of this release has to match.
        remedy: A sentence for the error message that says what to do.

    Returns:
        A value of that type; a plain `Manifest` with few keys if an earlier release wrote it.

    Raises:
        RunFolderError: It cannot be read, lacks a key, has a wrong value, or was changed after it
            was written.
    """
    document = read_json(path, remedy=remedy)
    if not isinstance(document, dict):
        raise damaged(path, "it holds no JSON object", remedy)
    version = document.get("manifest_version")
    # Earlier releases wrote fewer keys, so only those that every release has are checked.
    if version in range(1, MANIFEST_VERSION):
        return check_document(document, _EARLIER_TYPE, path=path, remedy=remedy)
    if isinstance(version, int) and version > MANIFEST_VERSION:
        raise damaged(path, f"a later release wrote it (manifest_version {version})", remedy)
    manifest = check_document(document, TypeAdapter(manifest_type), path=path, remedy=remedy)
    if SEAL in document and not has_seal(document):
        reason = "it was changed after it was written; its seal is of other content"
        raise damaged(path, reason, remedy)
    return manifest


def sealed_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest as it is written: without secrets, and with its seal."""
    document: dict[str, Any] = json.loads(json.dumps(redact_all(manifest)))
    return with_seal(document)
