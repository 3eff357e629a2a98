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
    """The bytes with one changed bit in the middle."""
    middle = len(file_bytes) // 2
    changed_byte = bytes([file_bytes[middle] ^ 1])
    return file_bytes[:middle] + changed_byte + file_bytes[middle + 1 :]


def with_another_digit(file_bytes: bytes) -> bytes:
    """The bytes with another first digit of the last number, which stays plausible."""
    *_, last_number = re.finditer(rb"\d+", file_bytes)
    position = last_number.start()
    digit = b"1" if file_bytes[position : position + 1] != b"1" else b"2"
    return file_bytes[:position] + digit + file_bytes[position + 1 :]


DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "a flipped bit": flipped,
    "another digit": with_another_digit,
    "half": lambda file_bytes: file_bytes[: len(file_bytes) // 2],
    "empty": lambda _: b"",
}


def can_suffer(file_bytes: bytes, damage: str) -> bool:
    """Whether a damage changes the bytes of a file."""
    if damage == "another digit":
        return re.search(rb"\d", file_bytes) is not None
    return len(file_bytes) > 0


def damage(path: Path, change: Callable[[bytes], bytes]) -> bytes:
    """Change a file but not its time; returns the old content, which hard links keep."""
    file_bytes, times = path.read_bytes(), path.stat()
    replace_file(path, change(file_bytes), times.st_mtime_ns)
    return file_bytes


def damage_page(path: Path, column: str) -> bytes:
    """Flip a bit of a page of a Parquet column, not of the footer; returns the old content."""
    row_group = pq.read_metadata(path).row_group(0)
    for index in range(row_group.num_columns):
        chunk = row_group.column(index)
        if chunk.path_in_schema == column:
            return _flip_byte(path, chunk.data_page_offset + chunk.total_compressed_size // 2)
    raise KeyError(column)


def _flip_byte(path: Path, position: int) -> bytes:
    """Flip a bit of a byte of a file; returns the old content."""

    def flip(file_bytes: bytes) -> bytes:
        byte = file_bytes[position : position + 1]
        return file_bytes[:position] + flipped(byte) + file_bytes[position + 1 :]

    return damage(path, flip)


def damage_end(path: Path) -> bytes:
    """Flip a bit near the end of a file, where Parquet has its footer; returns the old content."""
    return _flip_byte(path, max(0, path.stat().st_size - 20))


def replace_file(path: Path, file_bytes: bytes, mtime_ns: int) -> None:
    """Replace a file, so that its hard links stay, with a file of a given time."""
    new = path.with_name(f".{path.name}.damaged")
    new.write_bytes(file_bytes)
    new.replace(path)
    os.utime(path, ns=(mtime_ns, mtime_ns))


def content_of_another_run(path: Path, file_bytes: bytes) -> bytes:
    """What another run might write to a file: the same format and nearly the same size."""
    if path.suffix == ".parquet":
        return _reversed_rows(path)
    if path.suffix == ".json":
        return _with_other_numbers(file_bytes)
    rng = np.random.default_rng(seed=1)
    return rng.bytes(len(file_bytes))


def _reversed_rows(path: Path) -> bytes:
    table = pq.read_table(path)
    buffer = io.BytesIO()
    order = np.arange(table.num_rows)[::-1].copy()
    pq.write_table(table.take(order), buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def _with_other_numbers(file_bytes: bytes) -> bytes:
    def other_digits(match: re.Match[bytes]) -> bytes:
        return match.group().replace(b"1", b"2").replace(b"0", b"1")

    changed = re.sub(rb"\d+\.\d+", other_digits, file_bytes)
    json.loads(changed)
    return changed
