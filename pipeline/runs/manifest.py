"""What the manifest of a version says, and the pointer to the version in use."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from hep_core.integrity import SEAL, has_seal, with_seal
from hep_core.secrets import redact_all
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.outputs import OutputFile
from pipeline.runs.state_files import checked, damaged, read_json

MANIFEST_VERSION: Final = 3
#: Pattern of the names of versions.
VERSION_NAME: Final = re.compile(r"([0-9]{4,})-[0-9a-f]{8}")


def _named_like_a_version(name: str) -> str:
    if not VERSION_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is no name of a version, such as 0002-1f0a93bc")
    return name


def _inside_the_folder(files: list[OutputFile]) -> list[OutputFile]:
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{file.path}' leads out of the folder of the version")
    return files


VersionName = Annotated[str, AfterValidator(_named_like_a_version)]
Outputs = Annotated[list[OutputFile], AfterValidator(_inside_the_folder)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Pointer(BaseModel):
    """The content of `current.json`."""

    version: VersionName


class _Manifest(BaseModel):
    """What the manifests of stages and of models have in common."""

    model_config = ConfigDict(extra="allow")

    manifest_version: Literal[3]
    code_version: str
    outputs: Outputs
    seal: str | None = None
    """Digest of all other keys; manifests of earlier code have none."""


class _RecordedCheck(BaseModel):
    name: str
    passed: bool
    detail: str


class _Acceptance(BaseModel):
    when: AwareDatetime
    reasons: list[str]


class StageManifest(_Manifest):
    """The manifest of a version of a stage."""

    stage: str
    created: AwareDatetime
    seconds: Seconds
    command: list[str]
    fingerprint: Fingerprint
    made_from: Fingerprint | None = None
    """The fingerprint of the inputs it was made from, if `plan --accept` replaced the other one."""
    accepted: _Acceptance | None = None
    upstream: dict[str, VersionName]
    config: dict[str, Any]
    packages: dict[str, str]
    inputs: list[dict[str, Any]]
    counters: dict[str, Any]
    checks: list[_RecordedCheck]


class _Improvement(BaseModel):
    value: float
    error: float


class ModelManifest(_Manifest):
    """The manifest of a promoted model."""

    network: str
    train: VersionName
    promoted: AwareDatetime
    improvement: _Improvement | None
    withdrawn: AwareDatetime | None = None


class _EarlierManifest(BaseModel):
    """What is used of a manifest that earlier code wrote."""

    manifest_version: Literal[1, 2]
    outputs: Outputs = []
    upstream: dict[str, VersionName] = {}
    counters: dict[str, Any] = {}


POINTER_KIND: Final = TypeAdapter(Pointer)
_EARLIER_KIND: Final = TypeAdapter(_EarlierManifest)


def read_manifest(
    path: Path, kind: type[StageManifest | ModelManifest], *, remedy: str
) -> dict[str, Any]:
    """The checked content of a manifest; of one that earlier code wrote, only what is still used is checked.

    Raises:
        RunFolderError: It cannot be read, lacks a key, has a wrong value, or was changed after it was written.
    """
    content = read_json(path, remedy=remedy)
    if not isinstance(content, dict):
        raise damaged(path, "it holds no JSON object", remedy)
    version = content.get("manifest_version")
    if version in range(1, MANIFEST_VERSION):
        checked(content, _EARLIER_KIND, path=path, remedy=remedy)
        return content
    if isinstance(version, int) and version > MANIFEST_VERSION:
        raise damaged(path, f"a later release wrote it (manifest_version {version})", remedy)
    checked(content, TypeAdapter(kind), path=path, remedy=remedy)
    if SEAL in content and not has_seal(content):
        raise damaged(
            path, "it was changed after it was written; its seal is of other content", remedy
        )
    return content


def sealed_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest as it is written: without secrets, and with its seal."""
    content: dict[str, Any] = json.loads(json.dumps(redact_all(manifest)))
    return with_seal(content)
