"""Spoiled copies of real ROOT files, each made from its seed alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import uproot
from numpy.random import Generator

SAMPLES: Final = Path(__file__).resolve().parents[2] / "samples"
_KEY_HEAD: Final = ">ihiIhhii"
"""Of a TKey: fNbytes, fVersion, fObjlen, fDatime, fKeylen, fCycle, fSeekKey, fSeekPdir."""


def mutated_root(seed: int) -> bytes:
    """A bundled ROOT file with one to three things wrong."""
    rng = np.random.default_rng([*b"root", seed])
    paths = sorted(SAMPLES.glob("*.root"))
    path = paths[rng.integers(len(paths))]
    # Nearly all of a file is compressed, and a spoiled byte ends in the decompression; so in half of the
    # cases the tree's description lies there in plain, and what is spoiled is its meaning.
    in_plain = bool(rng.integers(2))
    whole, tree_at = with_plain_tree(path) if in_plain else (path.read_bytes(), 0)
    content = bytearray(whole)
    for _ in range(rng.integers(1, 4)):
        low, high = 0, len(content)
        if in_plain:
            low = min(tree_at, high - 1)
        elif rng.random() < 0.5:
            # Header, the first directory and its keys.
            high = min(high, 400)
        _ROOT_MUTATIONS[rng.integers(len(_ROOT_MUTATIONS))](content, rng, low, max(high, low + 1))
    return bytes(content)


@cache
def with_plain_tree(path: Path) -> tuple[bytes, int]:
    """A file whose tree is described without compression at its end, and where that begins."""
    with uproot.open(path) as file:
        key = file.key("Delphes")
        old, key_length = int(key.fSeekKey), int(key.fKeylen)
        chunk, cursor = key.get_uncompressed_chunk_cursor()
        plain = bytes(np.asarray(chunk.raw_data[cursor.index :], dtype=np.uint8))
    content = bytearray(path.read_bytes())
    head = bytearray(content[old : old + key_length])
    new = len(content)
    _nbytes, version, length, date, _keylen, cycle, _seek, parent = struct.unpack_from(_KEY_HEAD, head)
    plain = plain[:length]
    struct.pack_into(_KEY_HEAD, head, 0, key_length + length, version, length, date, key_length, cycle, new, parent)
    # The directory's own copy of the key, with the old place in it.
    copies = [at for at in _found(bytes(content), content[old + 18 : old + key_length]) if at != old + 18]
    for at in copies:
        content[at - 18 : at - 18 + key_length] = head
    content += head + plain
    # fEND of the file's header.
    struct.pack_into(">i", content, 12, len(content))
    return bytes(content), new + key_length


def _found(content: bytes, part: bytes | bytearray) -> list[int]:
    places, at = [], content.find(part)
    while at >= 0:
        places.append(at)
        at = content.find(part, at + 1)
    return places


def _flip_bits(content: bytearray, rng: Generator, low: int, high: int) -> None:
    for at in rng.integers(low, high, size=rng.integers(1, 9)):
        content[at] ^= 1 << int(rng.integers(8))


def _random_bytes(content: bytearray, rng: Generator, low: int, high: int) -> None:
    at = int(rng.integers(low, high))
    size = min(high - at, int(rng.integers(1, 33)))
    content[at : at + size] = rng.bytes(size)


def _odd_number(content: bytearray, rng: Generator, low: int, high: int) -> None:
    """Sizes, counts and places in a file are 4 or 8 bytes, the highest first."""
    layout = ">i" if rng.integers(2) else ">q"
    odd = [0, 1, -1, 2, 255, 0x7FFF, 2**30, 2**31 - 1, -(2**31)]
    number = odd[rng.integers(len(odd))]
    if layout == ">q" and rng.integers(2):
        number = int(rng.integers(-(2**63), 2**63 - 1))
    at = int(rng.integers(low, high))
    if at + 8 <= len(content):
        struct.pack_into(layout, content, at, number)


def _zeros(content: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    content[at : at + size] = bytes(size)


def _same_block_twice(content: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    other = int(rng.integers(low, high - size + 1))
    content[other : other + size] = content[at : at + size]


def _inserted_block(content: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    content[at:at] = content[at : at + size]


def _swapped_blocks(content: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    other = int(rng.integers(low, high - size + 1))
    content[at : at + size], content[other : other + size] = content[other : other + size], content[at : at + size]


def _cut_off(content: bytearray, rng: Generator, low: int, high: int) -> None:
    """Half of them with a header that knows of it."""
    del content[max(100, int(rng.integers(low, high))) :]
    if rng.integers(2):
        struct.pack_into(">i", content, 12, len(content))


def _header_field(content: bytearray, rng: Generator, low: int, high: int) -> None:
    """Version, fBEGIN, fEND, fSeekFree, fNbytesFree, nfree, fNbytesName, fUnits, fCompress, fSeekInfo, fNbytesInfo."""
    at = (4, 8, 12, 16, 20, 24, 28, 32, 33, 37, 41)[rng.integers(11)]
    struct.pack_into(">i", content, at, int(rng.integers(-(2**31), 2**31 - 1, dtype=np.int64)) >> int(rng.integers(31)))


def _block(rng: Generator, low: int, high: int) -> tuple[int, int]:
    """Somewhere between two places; of any order of magnitude up to 64 kB."""
    size = min(high - low, int(2 ** rng.uniform(0, 16)))
    return int(rng.integers(low, high - size + 1)), size


_ROOT_MUTATIONS: Final[tuple[Callable[[bytearray, Generator, int, int], None], ...]] = (
    _flip_bits, _random_bytes, _odd_number, _odd_number, _zeros, _same_block_twice, _inserted_block, _swapped_blocks,
    _cut_off, _header_field,
)  # fmt: skip
