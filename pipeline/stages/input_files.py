"""ROOT files as the inputs of a stage.

A file is known by its UUID, wherever it lies, and by what changes its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hep_core.secrets import redact
from pipeline.errors import RunFolderError
from pipeline.runs.counters import IngestCounters
from pipeline.runs.fingerprint import Input
from pipeline.runs.version import Version

if TYPE_CHECKING:
    from ingestion.file_info import BadFile, FileInfo


def files_read(version: Version | None) -> list[FileInfo]:
    """Return the ROOT files that a version read; empty if other code recorded them."""
    from ingestion.file_info import FileInfo

    if version is None:
        return []
    try:
        return [FileInfo(**record) for record in version.manifest.inputs]
    except TypeError:
        # Other code wrote it, which makes the stage stale: all files are checked again.
        return []


def files_skipped(version: Version | None) -> list[BadFile]:
    """Return the ROOT files that a version of `ingest` skipped as damaged.

    Empty if other code recorded them.
    """
    from ingestion.file_info import BadFile

    if version is None:
        return []
    try:
        return [BadFile(**record) for record in version.counters(IngestCounters).bad_files]
    except (RunFolderError, TypeError):
        return []


def identities(infos: Sequence[FileInfo], bad: Sequence[BadFile] = ()) -> dict[str, Input]:
    """Return ROOT files as inputs of a stage, by identity, with what changes their content.

    A file is identified by its UUID; a skipped one, which may have none, by its path. Paths are
    without credentials.

    Args:
        infos: Files that are read.
        bad: Files that are skipped.
    """
    inputs = {}
    for info in infos:
        digest = f"{info.sample}:{info.size}:{info.entries}:{info.revision}"
        inputs[info.uuid] = Input(redact(info.path), digest)
    for file in bad:
        path = redact(file.path)
        digest = f"{file.sample}:{file.size}:{file.modified}"
        inputs[f"skipped {path}"] = Input(f"{path} (skipped)", digest)
    return inputs
