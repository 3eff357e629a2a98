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
        """Return the path of the file; `folder` is that of the version."""
        return (as_path(self.lies_in) if self.lies_in else folder) / self.path

    def exists(self, folder: Path) -> bool:
        """Return whether the file is in the version folder.

        A file on object storage always counts as there, since a request would take long.
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
        """Return the earlier file of a name if a new file was taken over from it; else None.

        It was if both are the same file on disk (a hard link), or if their bytes are equal in a
        folder that may hold copies.

        Args:
            path: The new file.
            name: Its path below the folder of the new version.
        """
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
    """Describe all files of a new version, ordered by path, and flush them to the disk.

    A file that was taken over from the version in use keeps its recorded digest: a new one would
    hide damage since then.

    Args:
        folder: The folder of the version.
        without: Names of files that are left out.
        earlier: Files of the version in use, which may have been taken over.
        volatile: Keys of JSON files that do not count; see `without_volatile`.
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
    # The names of files belong to their folders, which need a flush of their own.
    for path in (folder, *folders):
        flush_folder(path)
    return outputs


def _describe(path: Path, name: str, volatile: Collection[str]) -> OutputFile:
    """Return size and digests of a file; `name` is its path below the folder of the version."""
    digest = _digest(path)
    # Of a file that is no JSON, the content is the bytes.
    json_digest = _json_digest(path, volatile)
    return OutputFile(
        name, path.stat().st_size, digest, json_digest or digest, footer=footer_of(path)
    )


def _json_digest(path: Path, volatile: Collection[str]) -> str | None:
    """Return the digest of a JSON file's content without volatile keys.

    None for other files, and for a file whose text is no JSON. A `.jsonl` file counts as the list
    of its lines, each one JSON value.
    """
    if path.suffix not in {".json", ".jsonl"}:
        return None
    text = path.read_text(encoding="utf-8")
    has_one_value = path.suffix == ".json"
    try:
        document = json.loads(text) if has_one_value else list(map(json.loads, text.splitlines()))
    except ValueError:
        return None
    # The paths of volatile keys begin with the name of the file.
    return digest_of(without_volatile({path.name: document}, volatile)[path.name])


def missing_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Return the files that are missing, or whose size is not the recorded one.

    Args:
        folder: The folder of the version.
        files: Its files, of which some may lie on object storage.
    """
    # One request lists the folder of the stage there, which holds the folders of all its versions.
    roots = {file.lies_in.rpartition("/")[0] for file in files if file.lies_in}
    stored_sizes = {
        f"{root}/{path}": size for root in roots for path, size in file_sizes(as_path(root)).items()
    }

    def size_of(file: OutputFile) -> int | None:
        """Return the present size of a file [bytes]; None if it is missing."""
        if file.lies_in:
            return stored_sizes.get(f"{file.lies_in}/{file.path}")
        try:
            return (folder / file.path).stat().st_size
        except OSError:
            return None

    return [file for file in files if size_of(file) != file.size]


def damaged_files(folder: Path, files: Collection[OutputFile]) -> list[OutputFile]:
    """Return the files that are missing or not what was written.

    Large files are not read whole, with one exception. The criterion is, in this order:

    - The size differs, or the file is missing: damaged.
    - Damage was found in it before: the digest of all bytes is compared.
    - Parquet: the digest of the footer is compared, since its readers check the pages.
    - Any other file of at most 16 MiB: the digest of all bytes is compared.
    """
    missing = {file.path for file in missing_files(folder, files)}
    suspected = suspected_files(folder)

    def is_damaged(file: OutputFile) -> bool:
        """Return whether a file is damaged by the criterion of `damaged_files`."""
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
    """Return the files that are missing, or whose bytes changed; it reads all files whole."""
    missing = missing_files(folder, files)
    return [
        file for file in files if file in missing or _digest(file.location(folder)) != file.digest
    ]


def suspected_files(folder: Path) -> frozenset[str]:
    """Return the paths of files of a version in which a reader found damage.

    They may have been restored since. A note that is missing or cannot be read names none.
    """
    try:
        paths = json.loads((folder / SUSPECTED).read_text(encoding="utf-8"))
        return frozenset(map(str, paths))
    except (OSError, ValueError, TypeError):
        return frozenset()


def suspect_files(folder: Path, paths: Iterable[str]) -> None:
    """Note files of a version in which damage was found, so that checks read them whole.

    The note is a file in the version folder, to which the paths are added.
    """
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
    """Return one digest of the content of the files and counters that match patterns.

    Args:
        files: The files of a version.
        counters: The counters in its manifest; a counter `x` has the path `counters/x`.
        patterns: Patterns of paths; `*` also matches slashes.
        volatile: Keys of the counters that do not count; see `without_volatile`.
    """
    digests: dict[str, Any] = {file.path: file.content for file in files}
    lasting_counters = without_volatile({"counters": counters}, volatile)["counters"]
    digests |= {f"counters/{name}": counter for name, counter in lasting_counters.items()}
    matching = {path: digest for path, digest in digests.items() if matches_any(path, patterns)}
    return digest_of(matching)


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path matches one of some patterns; `*` also matches slashes."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def digest_of(document: object) -> str:
    """Return a digest of JSON content, in which the order of keys does not count.

    Examples:
        >>> digest_of({"folds": 4, "slots": 2}) == digest_of({"slots": 2, "folds": 4})
        True
    """
    return xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True).encode())


def without_volatile(document: Mapping[str, Any], volatile: Collection[str]) -> dict[str, Any]:
    """Return JSON content without volatile keys: those that differ between equal results.

    `volatile` are paths of keys, joined by slashes; `*` stands for any key or index. The argument
    stays as it is.

    Examples:
        >>> without_volatile({"hlf": {"loss": 0.3, "seconds": 5}}, ["*/seconds"])
        {'hlf': {'loss': 0.3}}
    """
    paths = [tuple(path.split("/")) for path in volatile]
    lasting: dict[str, Any] = _without_paths(document, paths)
    return lasting


def _without_paths(document: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return JSON content without the values at some paths, each a tuple of keys.

    It descends level by level; at each, the paths that match the key lose their first element. An
    empty rest of a path means that the value at this key is left out.
    """
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
    """Return the digest of the footer of a Parquet file; empty for all other files.

    The footer is the part at the end that describes the file.
    """
    return _digest(path, footer_digest) if path.suffix == ".parquet" else ""


def digest_of_file(path: Path) -> str | None:
    """Digest of the bytes of a file; None if it is gone."""
    try:
        return _digest(path)
    except FileNotFoundError:
        return None


def _digest(path: Path, read: Callable[[Path], str] = file_digest) -> str:
    """Return the digest that a function reads, with errors of remote storage made readable."""
    with translate_fs_errors(path, "its content"):
        return read(path)
