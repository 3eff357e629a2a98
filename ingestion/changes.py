"""Tells which files have changed since they were last read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hep_core.input_errors import InputFileError, translate_read_errors
from hep_core.integrity import file_digest
from hep_core.storage import is_remote, retry_remote, size_and_time
from ingestion.file_info import FileInfo


def carry_over_revisions(infos: Iterable[FileInfo], earlier: Iterable[FileInfo]) -> list[FileInfo]:
    """Give every unchanged file the digest and the revision that it had when it was last read.

    `infos` are the files now, `earlier` those of the last run; the result is `infos` completed. A
    file with the same UUID, size, entries and modification time is unchanged, whatever its path.
    If only the time differs, the content decides. A changed file gets an empty digest and the time
    of the change as its revision. A file whose content cannot be read counts as changed; the error
    comes when it is read.
    """
    earlier_by_uuid = {info.uuid: info for info in earlier}
    return [_carry_over(info, earlier_by_uuid.get(info.uuid)) for info in infos]


def _carry_over(info: FileInfo, old: FileInfo | None) -> FileInfo:
    """One file with its digest and revision; `old` is the same file in the last run, if it was."""
    if old is None:
        return info
    if _has_same_content(info, old):
        return info._replace(digest=old.digest, revision=old.revision)
    return info._replace(digest="", revision=info.modified)


def _has_same_content(info: FileInfo, old: FileInfo) -> bool:
    """Whether a file is unchanged: size and entries are equal, and so is the time or the digest.

    The content is read only if the time differs. If it cannot be read, the file counts as changed.
    """
    if (info.size, info.entries) != (old.size, old.entries):
        return False
    # A file without entries has no digest: nothing of it was read.
    if not info.entries or (info.modified and info.modified == old.modified):
        return True
    if not old.digest:
        return False
    with suppress(InputFileError):
        return retry_remote(content_digest, info.path) == old.digest
    return False


def is_unchanged(info: FileInfo, old: FileInfo | None) -> bool:
    """Whether a file from `carry_over_revisions` is the same as when it was last read."""
    if old is None:
        return False
    return (info.size, info.entries, info.revision) == (old.size, old.entries, old.revision)


def content_digest(path: str) -> str:
    """128-bit hash (XXH3) of a local file; empty for a URL, whose server reports changes."""
    if is_remote(path):
        return ""
    with translate_read_errors(path, "its content"):
        return file_digest(Path(path))


def has_changed_since_check(info: FileInfo) -> bool:
    """Whether size or time of a file differ from those of its check, or cannot be read.

    A digest of such a file would describe content that was not read.
    """
    try:
        return size_and_time(info.path) != (info.size, info.modified)
    except InputFileError:
        return True
