"""Which files there are: globs, ROOT headers, identities (UUIDs), trees, branches and numbers of entries."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import fsspec
import uproot
from fsspec.implementations.local import LocalFileSystem

from ingestion.errors import (
    BadFilesError,
    DamagedFileError,
    DuplicateFileError,
    IngestionError,
    MissingBranchError,
    MissingTreeError,
    NoFilesError,
    TruncatedFileError,
    UnreadableFileError,
)
from ingestion.schema import OPTIONAL_SCALARS
from ingestion.settings import IngestSettings, SampleSettings, field_branches

_INSPECTORS: Final = 8
_BIG_FILE_VERSION: Final = 1_000_000


class SourceFile(NamedTuple):
    """A file that the config names, with the sample it belongs to."""

    sample: str
    label: int
    path: str


class FileInfo(NamedTuple):
    """A checked ROOT file. Its identity is the UUID, never the path."""

    sample: str
    label: int
    path: str
    uuid: str
    entries: int
    size: int
    modified: str
    missing_optional: tuple[str, ...]

    @property
    def place(self) -> str:
        """How messages name it."""
        return f"sample '{self.sample}': {self.path}"


def expand(samples: Iterable[SampleSettings]) -> list[SourceFile]:
    """All files of all samples, sorted within each pattern.

    Raises:
        NoFilesError: A pattern matches nothing.
    """
    found: list[SourceFile] = []
    for sample in samples:
        for pattern in sample.files:
            paths = _matches(pattern)
            if not paths:
                raise NoFilesError.at(sample.name, _resolved(pattern), _neighbours(pattern))
            found.extend(SourceFile(sample.name, sample.label, path) for path in paths)
    return found


def inventory(
    sources: Sequence[SourceFile],
    settings: IngestSettings,
    *,
    known: Mapping[str, FileInfo] | None = None,
    on_file: Callable[[int, int], None] | None = None,
) -> list[FileInfo]:
    """Check every file: ROOT header, tree, needed branches, number of entries, no file twice.

    Args:
        sources: The files, from `expand`.
        settings: Tree and branch names.
        known: Results of an earlier call by path; a file of the same size and modification time is not opened again.
        on_file: Called with (files done, files in all).

    Raises:
        IngestionError: The one bad file, or BadFilesError with all of them.
        DuplicateFileError: The same UUID twice.
    """
    known = known or {}

    def check(source: SourceFile) -> FileInfo | IngestionError:
        try:
            size, modified = _size_and_time(source.path)
            before = known.get(source.path)
            if before is not None and (before.size, before.modified) == (size, modified):
                return before._replace(sample=source.sample, label=source.label)
            return inspect(source, settings, size=size, modified=modified)
        except IngestionError as problem:
            return problem

    results = []
    with ThreadPoolExecutor(_INSPECTORS) as pool:
        for done, result in enumerate(pool.map(check, sources), start=1):
            results.append(result)
            if on_file:
                on_file(done, len(sources))
    problems = [result for result in results if isinstance(result, IngestionError)]
    if problems:
        raise BadFilesError.of(problems)
    infos = [result for result in results if isinstance(result, FileInfo)]
    _refuse_duplicates(infos)
    return infos


def inspect(source: SourceFile, settings: IngestSettings, *, size: int, modified: str) -> FileInfo:
    """Open one ROOT file and check that everything needed is in it.

    Raises:
        UnreadableFileError: No ROOT file.
        TruncatedFileError: Shorter than its header says.
        MissingTreeError: The tree is not there.
        MissingBranchError: A needed branch is not there.
        DamagedFileError: Its directory cannot be read.
    """
    _check_header(source.path, size)
    try:
        with uproot.open({source.path: None}) as file:
            kinds = file.classnames(cycle=False)
            is_tree = kinds.get(settings.tree) in {"TTree", "TNtuple", "TNtupleD"}
            tree = file[settings.tree] if is_tree else None
            uuid, entries = str(file.file.uuid), 0 if tree is None else int(tree.num_entries)
            branches = set() if tree is None else set(tree.keys(full_paths=False))
    except Exception as cause:
        # Damaged bytes make uproot raise almost anything (OSError, struct.error, KeyError, zlib.error ...).
        raise DamagedFileError.at(source.path, where="its directory", cause=cause) from cause
    if tree is None:
        held = [f"{name} ({kind})" for name, kind in kinds.items()]
        raise MissingTreeError.at(source.path, settings.tree, held)
    missing = {field: branch for field, branch in field_branches(settings.branch_map).items() if branch not in branches}
    optional = tuple(sorted(set(missing) & set(OPTIONAL_SCALARS)))
    needed = {field: branch for field, branch in missing.items() if field not in OPTIONAL_SCALARS}
    if needed:
        raise MissingBranchError.at(source.path, settings.tree, needed, branches)
    return FileInfo(source.sample, source.label, source.path, uuid, entries, size, modified, optional)


def _refuse_duplicates(infos: Iterable[FileInfo]) -> None:
    seen: dict[str, FileInfo] = {}
    for info in infos:
        if info.uuid in seen:
            raise DuplicateFileError.at(info.uuid, seen[info.uuid].place, info.place)
        seen[info.uuid] = info


def _check_header(path: str, size: int) -> None:
    """Compare the end that the ROOT header states (fEND) with the size of the file.

    Layout: magic 'root', int32 version, int32 fBEGIN, then fEND as int32, or int64 from version 1000000 on.
    """
    filesystem, name = _filesystem(path)
    try:
        with filesystem.open(name, "rb") as file:
            head = file.read(20)
    except OSError as cause:
        raise UnreadableFileError(f"{path} cannot be opened ({cause}). Check its permissions.") from cause
    if not head.startswith(b"root") or len(head) < 20:
        raise UnreadableFileError(
            f"{path} is not a ROOT file (it starts with {head[:4]!r}, a ROOT file with b'root'). "
            f"Take it out of the sample's files, or correct the glob."
        )
    (version,) = struct.unpack_from(">i", head, 4)
    (end,) = struct.unpack_from(">q" if version >= _BIG_FILE_VERSION else ">i", head, 12)
    if end > size:
        raise TruncatedFileError.at(path, expected=end, actual=size)


def _size_and_time(path: str) -> tuple[int, str]:
    """Size in bytes and modification time (as the file system words it; empty if it has none)."""
    filesystem, name = _filesystem(path)
    try:
        info: dict[str, Any] = filesystem.info(name)
    except (OSError, ValueError) as cause:
        raise UnreadableFileError(f"{path} cannot be opened ({cause}). Check the path and its permissions.") from cause
    if info.get("type") == "directory":
        raise UnreadableFileError(f"{path} is a folder. Give a glob of the files in it, such as '{path}/*.root'.")
    if info.get("type") != "file":
        raise UnreadableFileError(
            f"{path} is no ordinary file (a {info.get('type')}). Take it out of the sample's files."
        )
    stamp = info.get("mtime") or info.get("LastModified") or info.get("ETag") or ""
    return int(info["size"] or 0), str(stamp)


def _filesystem(path: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the name on it."""
    if not _is_url(path):
        # Not through fsspec's parser, which would read '::' in a name as a chain of file systems.
        return LocalFileSystem(), path
    try:
        filesystem, name = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as cause:
        raise UnreadableFileError(
            f"{path} cannot be reached ({cause}). Install fsspec's plug-in for this kind of URL (for root:// "
            f"fsspec-xrootd, for s3:// s3fs, for https:// aiohttp) into the environment, or correct the URL."
        ) from cause
    return filesystem, name


def _is_url(path: str) -> bool:
    return "://" in path


def _resolved(pattern: str) -> str:
    return pattern if _is_url(pattern) else str(Path(pattern).absolute())


def _matches(pattern: str) -> list[str]:
    """Sorted paths; a pattern without wildcards is taken as it is if it exists."""
    filesystem, name = _filesystem(pattern)
    # A name that exists is itself, even if it looks like a pattern.
    if filesystem.exists(name):
        return [pattern]
    if not any(sign in name for sign in "*?["):
        return []
    found = sorted(str(path) for path in filesystem.glob(name) if not filesystem.isdir(path))
    if not _is_url(pattern):
        return found
    return [filesystem.unstrip_protocol(path) for path in found]


def _neighbours(pattern: str) -> list[str]:
    """What lies in the folder of a local pattern that matches nothing, or the nearest folder above it."""
    if _is_url(pattern):
        return []
    folder = Path(pattern).absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    return sorted(str(path) for path in folder.iterdir() if not path.name.startswith("."))
