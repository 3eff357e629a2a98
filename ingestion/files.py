"""Which files there are: globs, ROOT headers, identities (UUIDs), trees, branches and numbers of entries."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import fsspec
import uproot
from fsspec.implementations.local import LocalFileSystem

from ingestion.baskets import basket_boundaries, chunk_edges
from ingestion.errors import (
    BadFilesError,
    DuplicateFileError,
    IngestionError,
    MissingBranchError,
    MissingTreeError,
    NoFilesError,
    TruncatedFileError,
    UnreachableFileError,
    UnreadableFileError,
    WaitingFilesError,
    may_pass,
    read_error,
)
from ingestion.retrying import patiently
from ingestion.schema import OPTIONAL_SCALARS, ORIGIN_BRANCHES
from ingestion.settings import IngestSettings, OnBadFile, SampleSettings, field_branches
from ingestion.waiting import Cause, Waiting, arrived_late, is_recent, why_nothing_is_read

_INSPECTORS: Final = 8


class _FirstOnesStay(dict[int, type]):
    """Classes by version, of which none is ever replaced by another."""

    def __setitem__(self, version: int, kind: type) -> None:
        self.setdefault(version, kind)


for _kind in uproot.classes.values():
    # uproot makes a class from a file's own description where it reads a version that it does not know, and keeps it
    # for all files: of a damaged file, in the place of its own class, so that every good file after it "is damaged".
    if hasattr(_kind, "known_versions"):
        _kind.known_versions = _FirstOnesStay(_kind.known_versions)
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
    is_load_test: bool
    """Whether its events are copies (`ingestion.load_test`)."""
    edges: tuple[int, ...]
    """Where the file is cut into pieces, one events part each: between baskets, from 0 to the number of entries."""
    digest: str = ""
    """Of the content of a local file, once it has been read."""
    revision: str = ""
    """Empty for a file as first seen; when it was changed in place, the time of the change."""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From a manifest."""
        lists = {name: tuple(content[name]) for name in ("missing_optional", "edges")}
        return cls(**{**content, **lists})

    @property
    def place(self) -> str:
        """How messages name it."""
        return f"sample '{self.sample}': {self.path}"


class BadFile(NamedTuple):
    """A file that was skipped, and why."""

    sample: str
    path: str
    reason: str
    """Name of the error."""
    message: str
    size: int = -1
    modified: str = ""
    found_while_reading: bool = False
    """Looking at it shows nothing wrong; its content is damaged."""


class Inventory(NamedTuple):
    """The files that can be read, those that are skipped, and those that are left for another run."""

    infos: list[FileInfo]
    bad: list[BadFile]
    waiting: list[Waiting] = []  # noqa: RUF012 - nobody changes it


def expand(samples: Iterable[SampleSettings], *, on_unmatched: Callable[[str], None] | None = None) -> list[SourceFile]:
    """All files of all samples, sorted within each pattern.

    Args:
        samples: The samples.
        on_unmatched: Called with what to say of a glob that matches nothing while its sample has other files: its files
            may not have come yet, or it may be mistyped. Without it, such a glob is an error.

    Raises:
        NoFilesError: A sample has no files, or a file that is named is not there.
        UnreachableFileError: A server does not answer.
    """
    found: list[SourceFile] = []
    for sample in samples:
        matches = [(pattern, patiently(_matches, pattern)) for pattern in sample.files]
        unmatched = [pattern for pattern, paths in matches if not paths]
        missing = unmatched
        if on_unmatched and len(unmatched) < len(matches):
            missing = [pattern for pattern in unmatched if not _may_come_later(pattern)]
        if missing:
            raise NoFilesError.at(sample.name, [_resolved(pattern) for pattern in missing], _neighbours(missing[0]))
        if on_unmatched:
            for name in map(_resolved, unmatched):
                on_unmatched(f"sample '{sample.name}': no file matches '{name}' (yet?); its other files are taken")
        found.extend(SourceFile(sample.name, sample.label, path) for _, paths in matches for path in paths)
    return found


def inventory(
    sources: Sequence[SourceFile],
    settings: IngestSettings,
    *,
    known: Mapping[str, FileInfo | BadFile] | None = None,
    on_file: Callable[[int, int], None] | None = None,
) -> Inventory:
    """Check every file: ROOT header, tree, needed branches, number of entries, no file twice.

    Args:
        sources: The files, from `expand`.
        settings: Tree and branch names, and what to do about bad files.
        known: Results of an earlier call by path; a file of the same size and modification time is not opened again,
            unless it was found bad by looking at it (which may be mended without changing either).
        on_file: Called with (files done, files in all).

    Raises:
        IngestionError: The one bad file, or BadFilesError with all of them (or more than may be skipped).
        DuplicateFileError: The same UUID twice.
    """
    known = known or {}

    def check(source: SourceFile) -> FileInfo | BadFile | Waiting | IngestionError:
        return _check(source, settings, known.get(source.path))

    results = []
    with ThreadPoolExecutor(_INSPECTORS) as pool:
        for done, result in enumerate(pool.map(check, sources), start=1):
            results.append(result)
            if on_file:
                on_file(done, len(sources))
    problems = [result for result in results if isinstance(result, IngestionError)]
    if problems:
        raise BadFilesError.of(problems)
    found = Inventory(
        [result for result in results if isinstance(result, FileInfo)],
        [result for result in results if isinstance(result, BadFile)],
        [result for result in results if isinstance(result, Waiting)],
    )
    refuse_too_many(found.bad, settings)
    _refuse_duplicates(found.infos)
    return found


def _check(
    source: SourceFile, settings: IngestSettings, before: FileInfo | BadFile | None
) -> FileInfo | BadFile | Waiting | IngestionError:
    """Look at one file; what is wrong with it is a result."""
    size, modified = -1, ""
    try:
        size, modified = patiently(size_and_time, source.path)
        return _look(source, settings, before, size, modified)
    except IngestionError as problem:
        if is_recent(modified, settings.settle_seconds):
            return _waiting(source, Cause.UNFINISHED, f"it may still be being written: {problem}")
        if settings.on_bad_file is OnBadFile.FAIL:
            return problem
        return BadFile(source.sample, source.path, type(problem).__name__, str(problem), size, modified)


def _look(
    source: SourceFile, settings: IngestSettings, before: FileInfo | BadFile | None, size: int, modified: str
) -> FileInfo | BadFile | Waiting:
    """Look at one file, as far as that is needed after what was found before.

    Raises:
        IngestionError: Something is wrong with it.
    """
    if arrived_late(modified, settings.until):
        return _waiting(source, Cause.LATE, f"it was modified at or after {settings.until}")
    # A server that gives no time says nothing of changes.
    if before is not None and modified and (before.size, before.modified) == (size, modified):
        if isinstance(before, FileInfo):
            return before._replace(sample=source.sample, label=source.label)
        if settings.on_bad_file is OnBadFile.SKIP and before.found_while_reading:
            return before._replace(sample=source.sample)
    info = patiently(inspect, source, settings, size=size, modified=modified)
    if settings.settle_seconds and patiently(size_and_time, source.path) != (size, modified):
        return _waiting(source, Cause.UNFINISHED, "it changed while it was looked at")
    return info


def _waiting(source: SourceFile, cause: Cause, reason: str) -> Waiting:
    return Waiting(source.sample, source.path, cause, reason)


def refuse_waiting(found: Inventory, settings: IngestSettings) -> None:
    """A sample that waits as a whole is no sample without events: nothing about it is wrong, it is only too early.

    Raises:
        WaitingFilesError: A sample has no file that can be read now, and some that wait.
    """
    readable = {info.sample for info in found.infos}
    problems = []
    for sample in dict.fromkeys(each.sample for each in found.waiting):
        if sample not in readable:
            waiting = [each for each in found.waiting if each.sample == sample]
            num_bad = sum(each.sample == sample for each in found.bad)
            problems.append(why_nothing_is_read(sample, waiting, num_bad, settings))
    if problems:
        raise WaitingFilesError("\n".join(problems))


def refuse_too_many(bad: Sequence[BadFile], settings: IngestSettings) -> None:
    """Skipping has a limit.

    Raises:
        BadFilesError: More files than `max_bad_files`.
    """
    if len(bad) > settings.max_bad_files:
        raise BadFilesError.over_budget([each.message for each in bad], budget=settings.max_bad_files)


def inspect(source: SourceFile, settings: IngestSettings, *, size: int, modified: str) -> FileInfo:
    """Open one ROOT file and check that everything needed is in it.

    Raises:
        UnreadableFileError: No ROOT file.
        TruncatedFileError: Shorter than its header says.
        MissingTreeError: The tree is not there.
        MissingBranchError: A needed branch is not there.
        DamagedFileError: Its directory cannot be read.
        UnreachableFileError: It cannot be read now.
    """
    _check_header(source.path, size)
    try:
        with uproot.open({source.path: None}) as file:
            kinds = file.classnames(cycle=False)
            is_tree = kinds.get(settings.tree) in {"TTree", "TNtuple", "TNtupleD"}
            tree: Any = file[settings.tree] if is_tree else None
            uuid, entries = str(file.file.uuid), 0 if tree is None else int(tree.num_entries)
            branches = set() if tree is None else set(tree.keys(full_paths=False))
            needed = set(field_branches(settings.branch_map).values()) & branches
            boundaries = basket_boundaries(tree[name] for name in needed) if needed else []
    except Exception as cause:
        # Damaged bytes make uproot raise almost anything (OSError, struct.error, KeyError, zlib.error ...).
        raise read_error(source.path, where="its directory", cause=cause) from cause
    if tree is None:
        held = [f"{name} ({kind})" for name, kind in kinds.items()]
        raise MissingTreeError.at(source.path, settings.tree, held)
    missing = {field: branch for field, branch in field_branches(settings.branch_map).items() if branch not in branches}
    # What the user maps must be there.
    may_be_missing = set(OPTIONAL_SCALARS) - set(settings.branch_map)
    optional = tuple(sorted(set(missing) & may_be_missing))
    absent = {field: branch for field, branch in missing.items() if field not in may_be_missing}
    if absent:
        raise MissingBranchError.at(source.path, settings.tree, absent, branches)
    load_test = set(ORIGIN_BRANCHES) <= branches
    edges = tuple(chunk_edges(boundaries, 0, entries, settings.entries_per_task)) if entries else (0,)
    return FileInfo(source.sample, source.label, source.path, uuid, entries, size, modified, optional, load_test, edges)


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
    except Exception as cause:
        if may_pass(path, cause):
            raise UnreachableFileError.at(path, where="its header", cause=cause) from cause
        if not isinstance(cause, OSError):
            raise
        raise UnreadableFileError(f"{path} cannot be opened ({cause}). Check its permissions.") from cause
    if not head.startswith(b"root") or len(head) < 20:
        raise UnreadableFileError(
            f"{path} is not a ROOT file (it starts with {head[:4]!r}, a ROOT file with b'root'). "
            f"Take it out of the sample's files, or correct the glob."
        )
    (version,) = struct.unpack_from(">i", head, 4)
    (end,) = struct.unpack_from(">q" if version >= _BIG_FILE_VERSION else ">i", head, 12)
    # A server may not say how much there is.
    if 0 < size < end:
        raise TruncatedFileError.at(path, expected=end, actual=size)


def size_and_time(path: str) -> tuple[int, str]:
    """Size in bytes and modification time (as the file system words it; empty if it has none)."""
    filesystem, name = _filesystem(path)
    try:
        info: dict[str, Any] = filesystem.info(name)
    except Exception as cause:
        if may_pass(path, cause):
            raise UnreachableFileError.at(path, where="its size", cause=cause) from cause
        if not isinstance(cause, OSError | ValueError):
            raise
        raise UnreadableFileError(f"{path} cannot be opened ({cause}). Check the path and its permissions.") from cause
    if info.get("type") == "directory":
        raise UnreadableFileError(f"{path} is a folder. Give a glob of the files in it, such as '{path}/*.root'.")
    if info.get("type") != "file":
        raise UnreadableFileError(
            f"{path} is no ordinary file (a {info.get('type')}). Take it out of the sample's files."
        )
    stamp = next((info[key] for key in ("mtime", "ETag", "LastModified", "Last-Modified") if info.get(key)), "")
    return int(info["size"] or 0), str(stamp)


def _filesystem(path: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the name on it."""
    if not is_url(path):
        # Not through fsspec's parser, which would read '::' in a name as a chain of file systems.
        return LocalFileSystem(), path
    try:
        filesystem, name = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as cause:
        raise UnreadableFileError(
            f"{path} cannot be reached ({cause}). Install the plug-in for this kind of URL: pip install -e '.[xrootd]' "
            f"(fsspec-xrootd, for root://), '.[s3]' (s3fs) or '.[https]' (aiohttp). Or correct the URL."
        ) from cause
    return filesystem, name


def is_url(path: str) -> bool:
    """Whether a path names a server or a plug-in's file system."""
    return "://" in path


def _resolved(pattern: str) -> str:
    return pattern if is_url(pattern) else str(Path(pattern).absolute())


def _matches(pattern: str) -> list[str]:
    """Sorted paths; a pattern without wildcards is taken as it is if it exists."""
    filesystem, name = _filesystem(pattern)
    # A name that exists is itself, even if it looks like a pattern.
    if _exists(filesystem, name, pattern):
        return [pattern]
    if not has_wildcards(name):
        return []
    try:
        found = sorted(str(path) for path in filesystem.glob(name) if not filesystem.isdir(path))
    except Exception as cause:
        if may_pass(pattern, cause):
            raise UnreachableFileError.at(pattern, where="the list of its files", cause=cause) from cause
        raise
    if not is_url(pattern):
        return found
    return [filesystem.unstrip_protocol(path) for path in found]


def has_wildcards(name: str) -> bool:
    """Whether a name may stand for several."""
    return any(sign in name for sign in "*?[")


def _may_come_later(pattern: str) -> bool:
    """Whether a pattern may match nothing for a while, as no name without wildcards may.

    In addresses of the web a question mark begins the query, and matches nothing but itself.
    """
    is_web = pattern.startswith(("http://", "https://"))
    return has_wildcards(pattern.replace("?", "") if is_web else pattern)


def _exists(filesystem: Any, name: str, pattern: str) -> bool:
    """Like `filesystem.exists`, which says no when a server is down."""
    if not is_url(pattern):
        return bool(filesystem.exists(name))
    try:
        filesystem.info(name)
    except Exception as cause:
        if may_pass(pattern, cause) and not has_wildcards(name):
            raise UnreachableFileError.at(pattern, where="whether it is there", cause=cause) from cause
        return False
    return True


def _neighbours(pattern: str) -> list[str]:
    """What lies in the folder of a local pattern that matches nothing, or the nearest folder above it."""
    if is_url(pattern):
        return []
    folder = Path(pattern).absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    return sorted(str(path) for path in folder.iterdir() if not path.name.startswith("."))
