"""Digests and checksums by which every reader of our files notices damage.

| file | what shows damage |
|---|---|
| Parquet | the digest of its footer, a checksum of each page, and the lengths of its lists |
| JSON that leaves the run folder | its seal: a digest of its content |
| all other files | the digest of the file |

A manifest holds the digests. `hep_core.checked_parquet` reads our Parquet.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import xxhash

from hep_core.allocation import lack_of_memory

#: A Parquet file ends with the length of its footer (4 bytes, little-endian) and `_MAGIC`.
_TAIL_BYTES: Final = 8
_MAGIC: Final = b"PAR1"
#: Key of the digest of a JSON file in that file.
SEAL: Final = "seal"
#: The start of the message of a `DamagedOutputError`.
_MESSAGE: Final = re.compile(
    r"(?P<path>.+?) is not what was written: (?P<damage>.+?)\. Put the file back", re.DOTALL
)


class DamagedOutputError(Exception):
    """A file that this pipeline wrote has changed since.

    `damage` says how, and `stage` names the stage that wrote the file, empty if unknown.
    """

    def __init__(self, path: Path | str, damage: str, stage: str = "") -> None:
        self.path = str(path)
        self.damage = damage
        self.stage = stage
        command = f"`python -m pipeline {stage or 'run'}` with the same options"
        writer = f" The stage {stage} wrote it." if stage else ""
        super().__init__(
            f"{path} is not what was written: {damage}. Put the file back from a copy, or run "
            f"{command}, which makes it again.{writer}"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        return type(self), (self.path, self.damage, self.stage)

    @classmethod
    def from_message(cls, text: str) -> Self | None:
        """Build the error of another process from a text that begins with its message.

        Returns None for any other text. The stage is not in the result.
        """
        match = _MESSAGE.match(text)
        return cls(match["path"], match["damage"]) if match else None


def is_system_error(error: Exception) -> bool:
    """Whether an error of a read is of the system: it may pass, and the bytes may be good.

    The system is at fault if the error has a number (errno), or says that memory was lacking.

    Examples:
        >>> import errno
        >>> is_system_error(OSError(errno.ESTALE, "Stale file handle"))
        True
        >>> is_system_error(OSError("Not yet implemented"))
        False
    """
    has_number = isinstance(error, OSError) and error.errno is not None
    return has_number or bool(lack_of_memory(error))


def file_digest(path: Path) -> str:
    """128-bit hash (XXH3) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def footer_digest(path: Path) -> str:
    """Digest of the footer of a Parquet file, which has the places and sizes of all pages.

    The last 8 bytes say how long the footer is. If they do not fit, the file is damaged or no
    Parquet, and the result is the digest of these bytes.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] == _MAGIC and length + _TAIL_BYTES <= size:
            file.seek(size - length - _TAIL_BYTES)
            tail = file.read()
    return xxhash.xxh3_128_hexdigest(tail)


def with_seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a JSON document, with a digest of its content under the key `seal`."""
    return {**document, SEAL: seal_of(document)}


def seal_of(document: Mapping[str, Any]) -> str:
    """Return the digest of a JSON document without its seal."""
    unsealed = {name: value for name, value in document.items() if name != SEAL}
    return xxhash.xxh3_128_hexdigest(json.dumps(unsealed, sort_keys=True).encode())


def has_seal(document: Any) -> bool:
    """Return whether a JSON document has the seal that `with_seal` gives it."""
    return isinstance(document, dict) and document.get(SEAL) == seal_of(document)
