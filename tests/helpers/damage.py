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
    return _flipped_at(file_bytes, len(file_bytes) // 2)


def _flipped_at(file_bytes: bytes, position: int) -> bytes:
    flipped_byte = bytes([file_bytes[position] ^ 1])
    return file_bytes[:position] + flipped_byte + file_bytes[position + 1 :]


def with_another_digit(file_bytes: bytes) -> bytes:
    """The first digit of the last number is another; the number stays plausible."""
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
    """True if a damage changes a content."""
    if damage == "another digit":
        return re.search(rb"\d", file_bytes) is not None
    return len(file_bytes) > 0


def damage(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """Change a file and keep its time; returns the old content, which a hard link keeps."""
    file_bytes = path.read_bytes()
    replace_file(path, change(file_bytes), path.stat().st_mtime_ns)
    return file_bytes


def damage_page(path: Path, column: str) -> bytes:
    """Flip a bit of a page of a Parquet column, not of the footer; returns the old content."""
    group = pq.read_metadata(path).row_group(0)
    chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}
    position = chunks[column].data_page_offset + chunks[column].total_compressed_size // 2
    return damage(path, lambda file_bytes: _flipped_at(file_bytes, position))


def damage_end(path: Path) -> bytes:
    """Flip a bit near the end of a file, where Parquet has its footer; returns the old content."""
    position = max(0, path.stat().st_size - 20)
    return damage(path, lambda file_bytes: _flipped_at(file_bytes, position))


def replace_file(path: Path, file_bytes: bytes, mtime_ns: int) -> None:
    """Replace a file, so that its hard links stay, with a file of a given time."""
    new = path.with_name(f".{path.name}.damaged")
    new.write_bytes(file_bytes)
    new.replace(path)
    os.utime(path, ns=(mtime_ns, mtime_ns))


def content_of_another_run(path: Path, file_bytes: bytes) -> bytes:
    """Content that another run might have in a file: of the same kind and nearly the same size."""
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
    def change_digits(match: re.Match[bytes]) -> bytes:
        return match.group().replace(b"1", b"2").replace(b"0", b"1")

    changed = re.sub(rb"\d+\.\d+", change_digits, file_bytes)
    json.loads(changed)
    return changed
