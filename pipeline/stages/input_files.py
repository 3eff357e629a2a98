"""ROOT files as the inputs of a stage: known by their UUID, wherever they lie, and by what changes their content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hep_core.secrets import redact
from pipeline.runs.fingerprint import Input
from pipeline.runs.store import Version

if TYPE_CHECKING:
    from ingestion.files import BadFile, FileInfo


def files_read(version: Version | None) -> list[FileInfo]:
    """The ROOT files that a version read."""
    from ingestion.files import FileInfo

    if version is None:
        return []
    try:
        return [FileInfo(**info) for info in version.manifest["inputs"]]
    except TypeError:
        # Other code wrote it, which makes the stage stale: all files are checked again.
        return []


def files_skipped(version: Version | None) -> list[BadFile]:
    """The ROOT files that a version of `ingest` skipped."""
    from ingestion.files import BadFile

    if version is None:
        return []
    try:
        return [BadFile(**bad) for bad in version.manifest["counters"]["bad_files"]]
    except (KeyError, TypeError):
        return []


def identities(infos: Sequence[FileInfo], bad: Sequence[BadFile] = ()) -> dict[str, Input]:
    """Files by UUID, skipped ones (which may have none) by path."""
    good = {
        info.uuid: Input(
            redact(info.path), f"{info.sample}:{info.size}:{info.entries}:{info.revision}"
        )
        for info in infos
    }
    skipped = {
        f"skipped {redact(each.path)}": Input(
            f"{redact(each.path)} (skipped)", f"{each.sample}:{each.size}:{each.modified}"
        )
        for each in bad
    }
    return good | skipped
