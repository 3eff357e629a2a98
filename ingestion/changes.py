"""Which files have changed since they were last read."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from hep_core.input_errors import InputFileError, translate_read_errors
from hep_core.integrity import file_digest
from hep_core.storage import is_remote, retry_remote, size_and_time
from ingestion.files import FileInfo


def carry_over_revisions(infos: Iterable[FileInfo], earlier: Iterable[FileInfo]) -> list[FileInfo]:
    """Give every unchanged file the digest and the revision that it had.

    A file with the same UUID, size, entries and modification time is unchanged, whatever its path. If only the time
    differs, the content decides. A changed file gets an empty digest and the time of the change as its revision. A
    file whose content cannot be read counts as changed; the error comes when it is read.
    """
    before = {info.uuid: info for info in earlier}
    return [_recognised(info, before[info.uuid]) if info.uuid in before else info for info in infos]


def is_unchanged(info: FileInfo, old: FileInfo | None) -> bool:
    """Whether a file from `carry_over_revisions` is the one that was read before."""
    return old is not None and (info.size, info.entries, info.revision) == (
        old.size,
        old.entries,
        old.revision,
    )


def content_digest(path: str) -> str:
    """128-bit hash (XXH3) of a local file; empty for a URL, whose server reports changes."""
    if is_remote(path):
        return ""
    with translate_read_errors(path, "its content"):
        return file_digest(Path(path))


def has_changed_since_check(info: FileInfo) -> bool:
    """Whether a file has changed since it was checked; its digest would then describe content that was not read."""
    try:
        return size_and_time(info.path) != (info.size, info.modified)
    except InputFileError:
        return True


def _recognised(info: FileInfo, old: FileInfo) -> FileInfo:
    same_size = (info.size, info.entries) == (old.size, old.entries)
    # A file without entries has no digest: nothing of it was read.
    same_time = not info.entries or (info.modified and info.modified == old.modified)
    with suppress(InputFileError):
        if same_size and (
            same_time or (old.digest and retry_remote(content_digest, info.path) == old.digest)
        ):
            return info._replace(digest=old.digest, revision=old.revision)
    return info._replace(digest="", revision=info.modified)
