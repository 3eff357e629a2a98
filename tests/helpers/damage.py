"""Damages of files, as a bad disk or a person makes them."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.parquet as pq


def flipped(file_bytes: bytes) -> bytes:
    """One bit in the middle is another."""
    middle = len(file_bytes) // 2
    return file_bytes[:middle] + bytes([file_bytes[middle] ^ 1]) + file_bytes[middle + 1 :]


def with_another_digit(file_bytes: bytes) -> bytes:
    """The first digit of the last number is another; a number in text stays as plausible as it was."""
    numbers = list(re.finditer(rb"\d+", file_bytes))
    position = numbers[-1].start()
    digit = b"1" if file_bytes[position : position + 1] != b"1" else b"2"
    return file_bytes[:position] + digit + file_bytes[position + 1 :]


DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "a flipped bit": flipped,
    "another digit": with_another_digit,
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
}


def can_suffer(file_bytes: bytes, damage: str) -> bool:
    """Whether a damage changes a content."""
    return len(file_bytes) > 0 and (
        damage != "another digit" or re.search(rb"\d", file_bytes) is not None
    )


def damage(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """Change a file and keep its time; a hard link to it keeps the old content, which is returned."""
    file_bytes, times = path.read_bytes(), path.stat()
    replace_file(path, change(file_bytes), times.st_mtime_ns)
    return file_bytes


def damage_page(path: Path, column: str) -> bytes:
    """Flip a bit of a page of a Parquet column, and leave the footer as it is; returns the old content."""
    group = pq.read_metadata(path).row_group(0)
    chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}
    folder = chunks[column].data_page_offset + chunks[column].total_compressed_size // 2
    return damage(
        path,
        lambda document: (
            document[:folder] + flipped(document[folder : folder + 1]) + document[folder + 1 :]
        ),
    )


def damage_end(path: Path) -> bytes:
    """Flip a bit near the end of a file, where Parquet has its footer; returns the old content."""
    position = max(0, path.stat().st_size - 20)
    return damage(
        path,
        lambda document: (
            document[:position]
            + flipped(document[position : position + 1])
            + document[position + 1 :]
        ),
    )


def replace_file(path: Path, file_bytes: bytes, mtime_ns: int) -> None:
    """Replace a file, so that its hard links stay, with a file of a given time."""
    new = path.with_name(f".{path.name}.damaged")
    new.write_bytes(file_bytes)
    new.replace(path)
    os.utime(path, ns=(mtime_ns, mtime_ns))


def content_of_another_run(path: Path, file_bytes: bytes) -> bytes:
    """What another run might have in the place of a file: of the same kind and, nearly, of the same size."""
    if path.suffix == ".parquet":
        return _reversed_rows(path)
    if path.suffix == ".json":
        return _with_other_numbers(file_bytes)
    random = np.random.default_rng(seed=1)
    return random.bytes(len(file_bytes))


def _reversed_rows(path: Path) -> bytes:
    table = pq.read_table(path)
    buffer = io.BytesIO()
    order = np.arange(table.num_rows)[::-1].copy()
    pq.write_table(table.take(order), buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _with_other_numbers(file_bytes: bytes) -> bytes:
    def changed(match: re.Match[bytes]) -> bytes:
        return match.group().replace(b"1", b"2").replace(b"0", b"1")

    second = re.sub(rb"\d+\.\d+", changed, file_bytes)
    json.loads(second)
    return second
