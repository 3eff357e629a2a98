"""The files of a version: sizes, digests of bytes, and digests of content.

The digest of the bytes shows damage; of Parquet that of the footer, since readers check the pages. The digest of the
content tells later stages whether their input changed. It leaves out values that differ in every run, such as times; so
an equal result makes no later stage stale.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from hep_core.atomic_files import flush_file, flush_folder, new_file
from hep_core.integrity import file_digest, footer_digest
from hep_core.storage import as_path, file_sizes, translate_fs_errors

#: Of the record and the summary of a training.
_OF_TRAINING: Final = (
    "consensus_distance|created|exchange_seconds|hidden_seconds|per_rank|samples_per_second|seconds|seconds_by_kind"
    "|wait_seconds"
)
#: Places of JSON, and of the counters, about the time, speed or source of a result, rather than the result. Whole
#: places, since samples and classes may have any name.
NOT_CONTENT: Final = re.compile(
    r"counters/kernel_outputs_taken_over|counters/kernel_outputs/\d+/(lies_in|file_digest)|dataset\.json/lies_in"
    r"|search\.json/(seconds|speed_up|training_seconds|trainings_taken_over|scores/\d+/latency)"
    rf"|(counters/networks/[^/]+|counters/further/[^/]+/[^/]+|rank-0\.jsonl/\d+)/({_OF_TRAINING})"
    r"|export\.json/[^/]+/(events_per_second|latency_us)"
)
#: Pattern of all counters of a manifest, among the files that a stage reads; `counters/weights` is one.
COUNTERS: Final = "counters/*"
#: File beside a manifest that names files in which damage was found.
SUSPECTED: Final = "suspected.json"
#: Largest file [bytes], other than Parquet, that is read whole to see whether it is damaged.
_READ_WHOLE: Final = 16 << 20


class OutputFile(NamedTuple):
    """A file of a version."""

    path: str
    """Path below the folder of the version."""
    size: int
    digest: str
    """XXH3 digest of the bytes."""
    content: str
    """Digest of the content; for JSON without `NOT_CONTENT`."""
    lies_in: str = ""
    """URL of its folder on object storage; empty for the folder of the version."""
    footer: str = ""
    """Digest of the footer of Parquet; empty for all other files."""

    def place(self, folder: Path) -> Path:
        """The file; `folder` is that of the version."""
        return (as_path(self.lies_in) if self.lies_in else folder) / self.path

    def is_there(self, folder: Path) -> bool:
        """Whether the file is in the version folder; one on object storage counts as there."""
        return bool(self.lies_in) or self.place(folder).exists()


def written_files(
    folder: Path,
    but: Collection[str],
    *,
    earlier: tuple[Path, Iterable[OutputFile]],
    taken_over_parts: Collection[str] = (),
) -> list[OutputFile]:
    """All files of a version, by path. They and their names are flushed to disk.

    A file that was taken over from the `earlier` version, given as its folder and files, keeps its digest: a new one
    would hide damage. It is a link to the earlier file or, where the file system has none, a copy in the folder of one
    of `taken_over_parts`. Elsewhere, a file may be equal to one that is damaged.
    """
    inside = sorted(folder.rglob("*"))
    paths = {
        each.relative_to(folder).as_posix(): each
        for each in inside
        if each.is_file() and each.name not in but
    }
    before, files = earlier
    those = [each for each in files if each.path in paths and not each.lies_in]
    known = {}
    for old in those:
        may_be_copy = old.path.partition("/")[0] in taken_over_parts
        if _is_taken_over(paths[old.path], before / old.path, may_be_copy=may_be_copy):
            known[old.path] = old
    for path in paths.values():
        flush_file(path)
    for path in (folder, *(path for path in inside if path.is_dir())):
        flush_folder(path)
    return [known.get(name) or _described(path, name) for name, path in paths.items()]


def missing_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Files that are missing, or whose size changed."""
    # One list for all versions of a stage.
    roots = {file.lies_in.rpartition("/")[0] for file in files if file.lies_in}
    sizes = {
        f"{root}/{path}": size for root in roots for path, size in file_sizes(as_path(root)).items()
    }
    return [
        file
        for file in files
        if (sizes.get(f"{file.lies_in}/{file.path}") if file.lies_in else _size(folder / file.path))
        != file.size
    ]


def damaged_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Files that are missing or not what was written, as far as that shows without reading large files whole.

    Of Parquet the footer is compared, since its readers check the pages; of other large files the size. A file in which
    damage was found before is read whole.
    """
    missing = {file.path for file in missing_files(folder, files)}
    suspected = suspected_files(folder)

    def is_damaged(file: OutputFile) -> bool:
        if file.path in missing:
            return True
        if file.path in suspected:
            return _digest(file.place(folder)) != file.digest
        if file.footer:
            return _digest(file.place(folder), footer_digest) != file.footer
        return file.size <= _READ_WHOLE and _digest(file.place(folder)) != file.digest

    # On object storage, the wait for an answer takes longer than all else.
    with ThreadPoolExecutor() as threads:
        return [
            file
            for file, damaged in zip(files, threads.map(is_damaged, files), strict=True)
            if damaged
        ]


def changed_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Files that are missing, or whose bytes changed; reads all files."""
    missing = missing_files(folder, files)
    return [file for file in files if file in missing or _digest(file.place(folder)) != file.digest]


def suspected_files(folder: Path) -> frozenset[str]:
    """Paths of files of a version in which a reader found damage; they may have been put back since."""
    try:
        paths = json.loads((folder / SUSPECTED).read_text(encoding="utf-8"))
        return frozenset(map(str, paths))
    except (OSError, ValueError, TypeError):
        return frozenset()


def suspect_files(folder: Path, paths: Iterable[str]) -> None:
    """Remember files of a version in which damage was found, so that they are read whole from now on."""
    suspected = suspected_files(folder) | set(paths)
    # A folder that cannot be written is not worse than before.
    with contextlib.suppress(OSError), new_file(folder / SUSPECTED) as unfinished:
        unfinished.write_text(json.dumps(sorted(suspected)), encoding="utf-8")


def clear_suspicion(folder: Path) -> None:
    """Forget that damage was found in files of a version, which are right again."""
    with contextlib.suppress(OSError):
        (folder / SUSPECTED).unlink()


def content_digest(
    files: Iterable[OutputFile], counters: Mapping[str, Any], patterns: Sequence[str]
) -> str:
    """One digest of the content of the files and counters that match patterns.

    `*` in a pattern also matches slashes.
    """
    content = {each.path: each.content for each in files}
    content |= {f"counters/{name}": each for name, each in counters.items()}
    return digest_of(
        {
            path: each
            for path, each in content.items()
            if any(fnmatchcase(path, one) for one in patterns)
        }
    )


def digest_of(value: object, place: str = "") -> str:
    """Digest of a JSON value, without `NOT_CONTENT`.

    Examples:
        >>> first, second = (digest_of({"folds": 4, "seconds": each}, "search.json") for each in (3.1, 2.8))
        >>> first == second
        True
    """
    return xxhash.xxh3_128_hexdigest(json.dumps(_content(value, place), sort_keys=True).encode())


def _content(value: object, place: str) -> Any:
    if isinstance(value, dict):
        places = {key: f"{place}/{key}".removeprefix("/") for key in value}
        return {
            str(key): _content(value[key], each)
            for key, each in places.items()
            if not NOT_CONTENT.fullmatch(each)
        }
    if isinstance(value, list | tuple):
        return [_content(each, f"{place}/{number}") for number, each in enumerate(value)]
    return value


def _digest_of_json(path: Path) -> str | None:
    """Content of a JSON file; None if it is no JSON."""
    text = path.read_text(encoding="utf-8")
    try:
        value = (
            json.loads(text)
            if path.suffix == ".json"
            else [json.loads(line) for line in text.splitlines()]
        )
    except ValueError:
        return None
    return digest_of(value, path.name)


def _is_taken_over(path: Path, old: Path, *, may_be_copy: bool) -> bool:
    """Whether a file is an earlier one or, if it may be, a copy of it."""
    if not old.is_file():
        return False
    return path.samefile(old) or (may_be_copy and filecmp.cmp(path, old, shallow=False))


def _described(path: Path, name: str) -> OutputFile:
    """A file with its digests; `name` is its path below the folder of the version."""
    digest = _digest(path)
    content = _digest_of_json(path) if path.suffix in {".json", ".jsonl"} else None
    return OutputFile(name, path.stat().st_size, digest, content or digest, footer=footer_of(path))


def footer_of(path: Path) -> str:
    """Digest of the footer of Parquet, for a manifest; empty for all other files."""
    return _digest(path, footer_digest) if path.suffix == ".parquet" else ""


def digest_of_file(path: Path) -> str | None:
    """Digest of the bytes of a file; None if it is gone."""
    try:
        return _digest(path)
    except FileNotFoundError:
        return None


def _digest(path: Path, read: Callable[[Path], str] = file_digest) -> str:
    with translate_fs_errors(path, "its content"):
        return read(path)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
