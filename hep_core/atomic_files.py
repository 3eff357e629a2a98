"""Files that appear under their names whole or not at all, also after a power cut."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from hep_core.secrets import redact_all
from hep_core.storage import is_remote, path_to_fs


@contextmanager
def new_file(path: Path, *, flushed: bool = False) -> Iterator[Path]:
    """Yield a local path to write to; at the end of the context the file appears as `path`.

    The yielded path is unique, so several attempts of a task may write the same file. After an
    error, or if nothing was written, no file appears. A file for object storage is written locally,
    then uploaded. If `flushed`, the bytes are on the disk before the file has its name: later runs
    rely on it without a check.
    """
    with contextlib.ExitStack() as stack:
        folder = path.parent
        if is_remote(path):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        unfinished = folder / f".{path.name}.{uuid.uuid4().hex}"
        stack.callback(unfinished.unlink, missing_ok=True)
        yield unfinished
        if flushed:
            flush_file(unfinished)
        if not unfinished.exists():
            return
        if is_remote(path):
            file_system, name = path_to_fs(path)
            file_system.put_file(str(unfinished), name)
        else:
            unfinished.replace(path)


def write_atomically(path: Path, document: dict[str, Any]) -> None:
    """Write JSON with secrets hidden; a power cut leaves the old file or the new one whole.

    The new file is flushed under a hidden name, then renamed; then the name is flushed.
    """
    unfinished = path.with_name(f".{path.name}.new")
    with unfinished.open("w", encoding="utf-8") as file:
        json.dump(redact_all(document), file, indent=1)
    flush_file(unfinished)
    unfinished.replace(path)
    flush_folder(path.parent)


def flush_file(path: Path) -> None:
    """Flush the bytes of a file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems cannot flush folders; the files are in place anyway.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def local_copy(path: Path, folder: Path) -> Path:
    """The path of a file, or for a URL of its copy in a local folder.

    The copy is named by a hash of the URL, and made only if it is not there yet.
    """
    if not is_remote(path):
        return path
    copy = folder / f"{xxhash.xxh3_128_hexdigest(str(path).encode())}{path.suffix}"
    if not copy.exists():
        file_system, name = path_to_fs(path)
        with new_file(copy) as unfinished:
            file_system.get_file(name, str(unfinished))
    return copy


def link_or_copy(old: str | Path, new: str | Path) -> None:
    """Give a file that never changes a second name; copy it where the file system has no links."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)
