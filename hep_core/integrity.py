"""Nothing of ours is used that is not what was written: digests and checksums of our files, and their checks.

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

_TAIL_BYTES: Final = 8
_MAGIC: Final = b"PAR1"
#: Key of the digest of a JSON file in that file.
SEAL: Final = "seal"
_WORDS: Final = re.compile(
    r"(?P<path>.+?) is not what was written: (?P<what>.+?)\. Put the file back", re.DOTALL
)


class DamagedOutputError(Exception):
    """A file that this pipeline wrote holds something else now."""

    def __init__(self, path: Path | str, what: str, stage: str = "") -> None:
        self.path = str(path)
        self.what = what
        self.stage = stage
        command = (
            f"`python -m pipeline {stage or 'run'}` with the same options, which makes it again"
        )
        writer = f" The stage {stage} wrote it." if stage else ""
        super().__init__(
            f"{path} is not what was written: {what}. Put the file back from a copy, or run {command}.{writer}"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str]]:
        return type(self), (self.path, self.what, self.stage)

    @classmethod
    def from_message(cls, words: str) -> Self | None:
        """The error whose message begins the words of another process; None for other words."""
        match = _WORDS.match(words)
        return cls(match["path"], match["what"]) if match else None


def is_system_error(error: Exception) -> bool:
    """Whether an error of a read is of the system, which may pass, and tells nothing of the bytes.

    Examples:
        >>> import errno
        >>> is_system_error(OSError(errno.ESTALE, "Stale file handle")), is_system_error(OSError("Not yet implemented"))
        (True, False)
    """
    return (isinstance(error, OSError) and error.errno is not None) or bool(lack_of_memory(error))


def file_digest(path: Path) -> str:
    """128-bit hash (XXH3) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def footer_digest(path: Path) -> str:
    """Digest of the footer of a Parquet file, which places and sizes all of its pages."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] == _MAGIC and length + _TAIL_BYTES <= size:
            file.seek(size - length - _TAIL_BYTES)
            tail = file.read()
    return xxhash.xxh3_128_hexdigest(tail)


def with_seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Content for a JSON file, with a digest of itself."""
    return {**content, SEAL: seal_of(content)}


def seal_of(content: Mapping[str, Any]) -> str:
    """Digest of content for a JSON file, without its seal."""
    unsealed = {name: value for name, value in content.items() if name != SEAL}
    return xxhash.xxh3_128_hexdigest(json.dumps(unsealed, sort_keys=True).encode())


def has_seal(content: Any) -> bool:
    """Whether the content of a JSON file is what `with_seal` gave."""
    return isinstance(content, dict) and content.get(SEAL) == seal_of(content)
