"""Spoiled copies of real ROOT files and of real configs, each made from its seed alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import uproot
from numpy.random import Generator
from ruamel.yaml.error import YAMLError

from pipeline.configuration.yaml_text import read_yaml, write_yaml

SAMPLES: Final = Path(__file__).resolve().parents[2] / "samples"
CONFIGS: Final = Path(__file__).resolve().parents[2] / "pipeline" / "configs"
_KEY_HEAD: Final = ">ihiIhhii"
"""Of a TKey: fNbytes, fVersion, fObjlen, fDatime, fKeylen, fCycle, fSeekKey, fSeekPdir."""


def rng_of(kind: str, seed: int) -> Generator:
    """The random numbers of one mutation."""
    return np.random.default_rng([*kind.encode(), seed])


def mutated_root(seed: int) -> bytes:
    """A bundled ROOT file with one to three things wrong."""
    rng = rng_of("root", seed)
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


#: Values, as YAML, that nobody would give.
_ODD_VALUES: Final = (
    "null", "~", "true", "''", "' '", "-1", "0", "1e308", "1e400", ".nan", "-.inf", "[]", "{}", "[[]]", "[null]",
    "9" * 5000, "'" + "x" * 100_000 + "'", "0x" + "f" * 300, "0b1", "1:60:61", "1_000", "2001-99-99", "2026-11-20",
    "2026-11-20T25:61:00Z", "0001-01-01T00:00:00+23:59", "!!python/object/apply:os.system ['touch pwned']",
    "!!python/name:os.system", "!!binary 'x'", "!!binary 'eHh4'", "!!int 'x'", "!!float 'x'", "!!bool 'x'",
    "!!timestamp 'x'", "!!null 'x'", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1, a: 2]", "!!str 5", "!!map [1]",
    "!unknown 1", "&x [*x]", "&x {a: *x}", "*nowhere", "[a, b: c]", "{? [1, 2] : 3}", "{1: 2}", "{null: 1}",
    "{true: 1, 1: 2}", "{<<: 5}", "{<<: [1]}", "{a: 1, <<: {a: 2}}", "=", "{=: 1}", "'\\0'", '"\\0"', '"\\ud800"',
    "../../../etc/passwd", "/dev/null", "[" * 3000 + "]" * 3000, "{a: " * 3000 + "1" + "}" * 3000, "- " * 2000 + "1",
    "{" + ", ".join(f"k{n}: {n}" for n in range(3000)) + "}", "|\n  text", "%", "@x", "`x`", "\t", "\x00", "\ufeff",
    "1" * 400 + ".5", "-0", "[1, 2", "'open", "12e03", "local[0]", "&a &b 1", "🙂", "a: b: c",
)  # fmt: skip


def mutated_config(seed: int) -> tuple[str, list[str]]:
    """A shipped config with one to four things wrong, and, for some, overrides as on the command line."""
    rng = rng_of("config", seed)
    paths = sorted(CONFIGS.glob("*.yaml"))
    text = paths[rng.integers(len(paths))].read_text(encoding="utf-8")
    for _ in range(rng.integers(1, 5)):
        text = _CONFIG_MUTATIONS[rng.integers(len(_CONFIG_MUTATIONS))](text, rng)
    overrides = []
    if rng.random() < 0.25:
        content = read_yaml(paths[0].read_text(encoding="utf-8"))
        keys = ".".join(map(str, _random_path(content, rng)))
        keys = keys if rng.random() < 0.8 else keys[: rng.integers(len(keys))] + "." * int(rng.integers(3))
        overrides.append(f"{keys}={_ODD_VALUES[rng.integers(len(_ODD_VALUES))]}")
    return text, overrides


def _random_path(content: Any, rng: Generator) -> list[Any]:
    """Keys that lead to some place in nested mappings and lists."""
    path: list[Any] = []
    while isinstance(content, dict | list) and content and (not path or rng.random() < 0.7):
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        path.append(keys[rng.integers(len(keys))])
        content = content[path[-1]]
    return path


def _on_tree(change: Callable[[Any, Any, Any, Generator], None]) -> Callable[[str, Generator], str]:
    """A mutation of the content: `change` gets the whole, the mapping or list of a place in it, and the key there."""

    def mutation(text: str, rng: Generator) -> str:
        if "&l0" in text:
            # Read by any other loader it takes all memory.
            return text
        try:
            content = read_yaml(text)
        except (YAMLError, ValueError, TypeError, AttributeError, RecursionError):
            return text
        if not isinstance(content, dict) or not content:
            return text
        *above, key = _random_path(content, rng)
        where = content
        for each in above:
            where = where[each]
        change(content, where, key, rng)
        try:
            return write_yaml(content)
        except (YAMLError, TypeError, RecursionError):
            return text

    return mutation


def _drop(content: Any, where: Any, key: Any, rng: Generator) -> None:
    del where[key]


def _retitle(content: Any, where: Any, key: Any, rng: Generator) -> None:
    if isinstance(where, dict):
        name = str(key)
        at = int(rng.integers(len(name) + 1))
        where[(name[:at] + name[at + 1 :], name + "s", name.upper(), 7, None)[rng.integers(5)]] = where.pop(key)


def _move(content: Any, where: Any, key: Any, rng: Generator) -> None:
    """The value of another place too; never a part of itself."""
    *above, last = _random_path(content, rng)
    source = content
    for each in above:
        source = source[each]
    where[key] = read_yaml(write_yaml(source[last]))


def _odd_value(text: str, rng: Generator) -> str:
    """The value of a line, or a new line, becomes something odd."""
    odd = _ODD_VALUES[rng.integers(len(_ODD_VALUES))]
    lines = text.splitlines()
    at = int(rng.integers(len(lines) + 1)) if lines else 0
    name, colon, _ = lines[at].partition(": ") if at < len(lines) else ("train", ": ", "")
    lines[at : at + 1] = [f"{name}{colon or ': '}{odd}"]
    return "\n".join(lines)


def _same_line_twice(text: str, rng: Generator) -> str:
    lines = text.splitlines() or [""]
    at = int(rng.integers(len(lines)))
    return "\n".join([*lines[:at], lines[at], *lines[at:]])


def _spoiled_text(text: str, rng: Generator) -> str:
    at, size = _block(rng, 0, max(1, len(text)))
    signs = "\t :-[]{}&*!|>'\"%@`#,?\x00\x85\n9"
    return text[:at] + "".join(signs[n] for n in rng.integers(len(signs), size=rng.integers(4))) + text[at + size % 9 :]


_CONFIG_MUTATIONS: Final[tuple[Callable[[str, Generator], str], ...]] = (
    _on_tree(_drop), _on_tree(_retitle), _on_tree(_move), _odd_value, _odd_value, _odd_value, _same_line_twice,
    _spoiled_text,
)  # fmt: skip
