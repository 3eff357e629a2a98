"""The files of a version: sizes, digests of bytes, and digests of content.

The digest of the bytes shows damage; of Parquet that of the footer, since readers check the pages.
The digest of the content tells later stages whether their input changed. It leaves out the volatile
keys of a stage, such as times, so that an equal result makes no later stage stale.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from hep_core.atomic_files import flush_file, flush_folder, new_file
from hep_core.integrity import file_digest, footer_digest
from hep_core.storage import as_path, file_sizes, translate_fs_errors

#: Pattern of all counters of a manifest, among the files that a stage reads; `counters/weights` is
#: the pattern of one.
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
    """Digest of the content; of JSON without the volatile keys of its stage."""
    lies_in: str = ""
    """URL of its folder on object storage; empty for the folder of the version."""
    footer: str = ""
    """Digest of the footer of Parquet; empty for all other files."""

    def location(self, folder: Path) -> Path:
        """The file; `folder` is that of the version."""
        return (as_path(self.lies_in) if self.lies_in else folder) / self.path

    def exists(self, folder: Path) -> bool:
        """Whether the file is in the version folder.

        On object storage every file counts as there.
        """
        return bool(self.lies_in) or self.location(folder).exists()


class EarlierFiles(NamedTuple):
    """The files of the version in use, which a new version may take over."""

    folder: Path
    files: Mapping[str, OutputFile]
    """Its files by path, without those on object storage."""
    copied_parts: Collection[str] = ()
    """Folders of the new version whose files may be copies of the earlier ones."""

    def taken_over(self, path: Path, name: str) -> OutputFile | None:
        """The earlier file of a name if a new file is a link to it or, in some parts, a copy."""
        earlier_path = self.folder / name
        if name not in self.files or not earlier_path.is_file():
            return None
        if path.samefile(earlier_path):
            return self.files[name]
        # Elsewhere, a file may happen to be equal to one that is damaged.
        may_be_copy = name.partition("/")[0] in self.copied_parts
        if may_be_copy and filecmp.cmp(path, earlier_path, shallow=False):
            return self.files[name]
        return None


def written_files(
    folder: Path,
    *,
    without: Collection[str],
    earlier: EarlierFiles,
    volatile: Collection[str] = (),
) -> list[OutputFile]:
    """Describe all files of a version, by path, and flush them and their names to the disk.

    A file that was taken over from the version in use keeps its digest: a new one would hide
    damage. Files of the names in `without` are left out.
    """
    paths = sorted(folder.rglob("*"))
    folders = [path for path in paths if path.is_dir()]
    files = {
        path.relative_to(folder).as_posix(): path
        for path in paths
        if path.is_file() and path.name not in without
    }
    outputs = []
    for name, path in files.items():
        flush_file(path)
        earlier_file = earlier.taken_over(path, name)
        outputs.append(earlier_file or _describe(path, name, volatile))
    for path in (folder, *folders):
        flush_folder(path)
    return outputs


def _describe(path: Path, name: str, volatile: Collection[str]) -> OutputFile:
    digest = _digest(path)
    json_digest = _json_digest(path, volatile)
    return OutputFile(
        name, path.stat().st_size, digest, json_digest or digest, footer=footer_of(path)
    )


def _json_digest(path: Path, volatile: Collection[str]) -> str | None:
    """Digest of the content of a JSON file; None for other files."""
    if path.suffix not in {".json", ".jsonl"}:
        return None
    text = path.read_text(encoding="utf-8")
    has_one_value = path.suffix == ".json"
    try:
        document = json.loads(text) if has_one_value else list(map(json.loads, text.splitlines()))
    except ValueError:
        return None
    return digest_of(without_volatile({path.name: document}, volatile)[path.name])


def missing_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Files that are missing, or whose size changed."""
    # One list for all versions of a stage on object storage.
    roots = {file.lies_in.rpartition("/")[0] for file in files if file.lies_in}
    stored_sizes = {
        f"{root}/{path}": size for root in roots for path, size in file_sizes(as_path(root)).items()
    }

    def size_of(file: OutputFile) -> int | None:
        if file.lies_in:
            return stored_sizes.get(f"{file.lies_in}/{file.path}")
        try:
            return (folder / file.path).stat().st_size
        except OSError:
            return None

    return [file for file in files if size_of(file) != file.size]


def damaged_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Files that are missing or not what was written, without reading large files whole.

    Of Parquet the footer is compared, since its readers check the pages; of other large files the
    size. A file in which damage was found before is read whole.
    """
    missing = {file.path for file in missing_files(folder, files)}
    suspected = suspected_files(folder)

    def is_damaged(file: OutputFile) -> bool:
        path = file.location(folder)
        if file.path in missing:
            return True
        if file.path in suspected:
            return _digest(path) != file.digest
        if file.footer:
            return _digest(path, footer_digest) != file.footer
        return file.size <= _READ_WHOLE and _digest(path) != file.digest

    # On object storage, the wait for an answer takes longer than all else.
    with ThreadPoolExecutor() as threads:
        damage_flags = list(threads.map(is_damaged, files))
    return [file for file, damaged in zip(files, damage_flags, strict=True) if damaged]


def changed_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Files that are missing, or whose bytes changed; reads all files."""
    missing = missing_files(folder, files)
    return [
        file for file in files if file in missing or _digest(file.location(folder)) != file.digest
    ]


def suspected_files(folder: Path) -> frozenset[str]:
    """Paths of files of a version in which a reader found damage.

    They may have been restored since.
    """
    try:
        paths = json.loads((folder / SUSPECTED).read_text(encoding="utf-8"))
        return frozenset(map(str, paths))
    except (OSError, ValueError, TypeError):
        return frozenset()


def suspect_files(folder: Path, paths: Iterable[str]) -> None:
    """Remember files of a version in which damage was found, so that they are read whole."""
    suspected = suspected_files(folder) | set(paths)
    # Without a note in a read-only folder, the file is checked as before.
    with contextlib.suppress(OSError), new_file(folder / SUSPECTED) as unfinished:
        unfinished.write_text(json.dumps(sorted(suspected)), encoding="utf-8")


def clear_suspicion(folder: Path) -> None:
    """Forget that damage was found in files of a version, which are right again."""
    with contextlib.suppress(OSError):
        (folder / SUSPECTED).unlink()


def content_digest(
    files: Iterable[OutputFile],
    counters: Mapping[str, Any],
    patterns: Sequence[str],
    volatile: Collection[str] = (),
) -> str:
    """One digest of the content of the files and counters that match patterns.

    `*` in a pattern also matches slashes. `volatile` are keys of the counters that do not count.
    """
    digests: dict[str, Any] = {file.path: file.content for file in files}
    lasting_counters = without_volatile({"counters": counters}, volatile)["counters"]
    digests |= {f"counters/{name}": counter for name, counter in lasting_counters.items()}
    return digest_of(
        {
            path: digest
            for path, digest in digests.items()
            if any(fnmatchcase(path, pattern) for pattern in patterns)
        }
    )


def digest_of(document: object) -> str:
    """Digest of JSON content.

    Examples:
        >>> digest_of({"folds": 4, "slots": 2}) == digest_of({"slots": 2, "folds": 4})
        True
    """
    return xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True).encode())


def without_volatile(document: Mapping[str, Any], volatile: Collection[str]) -> dict[str, Any]:
    """JSON content without volatile keys, which are paths of keys; `*` is any key or index.

    Examples:
        >>> without_volatile({"hlf": {"loss": 0.3, "seconds": 5}}, ["*/seconds"])
        {'hlf': {'loss': 0.3}}
    """
    paths = [tuple(path.split("/")) for path in volatile]
    lasting: dict[str, Any] = _without_paths(document, paths)
    return lasting


def _without_paths(document: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """JSON content without the values at some paths."""
    if isinstance(document, Mapping):
        lasting = {}
        for key, child in document.items():
            child_paths = [path[1:] for path in paths if path and path[0] in {"*", key}]
            if () not in child_paths:
                lasting[str(key)] = _without_paths(child, child_paths)
        return lasting
    if isinstance(document, list | tuple):
        child_paths = [path[1:] for path in paths if path and path[0] == "*"]
        return [_without_paths(child, child_paths) for child in document]
    return document


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
