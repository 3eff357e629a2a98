"""Spoiled copies of real ROOT files, tried one after the other in a child of bounded memory.

python fuzzing.py <first seed> <seeds> <folder>      the child: a line of JSON for each
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import uproot
from numpy.random import Generator

from hep_core.causes import error_and_causes

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLES: Final = ROOT / "samples"
#: Memory of the child; without inputs it takes half a GiB.
MEMORY_BYTES: Final = 4 << 30
#: Of real memory, by one input: the biggest file has 4 MB.
GROWTH_BYTES: Final = 1 << 30
GOOD_FILE: Final = SAMPLES / "wjets_13TeV_PU20_1.root"
_KEY_HEAD: Final = ">ihiIhhii"
"""Numbers of a TKey: fNbytes, fVersion, fObjlen, fDatime, fKeylen, fCycle, fSeekKey, fSeekPdir."""
#: Offset of fSeekKey. From there on, the directory has a copy of the same bytes.
_SEEK_OFFSET: Final = 18


class Outcome(NamedTuple):
    seed: int
    verdict: str
    """`accepted`, `refused` (by an error with a message for the user), or `failed`."""
    message: str


class SpoiledProcessError(Exception):
    """After a spoiled file, good ones cannot be read any more."""


def fuzz(first: int, count: int, folder: Path, *, seconds: float) -> list[Outcome]:
    """Try `count` seeds from `first` on; if the child dies or hangs, that is the last outcome."""
    command = [sys.executable, __file__, str(first), str(count), str(folder)]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    output, errors = folder / "outcomes.jsonl", folder / "errors.txt"
    with output.open("w") as out, errors.open("w") as noise:
        try:
            completed = subprocess.run(
                command, stdout=out, stderr=noise, cwd=folder, timeout=seconds, check=False,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
            ended = f"the child ended with status {completed.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"the child was not done within {seconds} s"
    outcomes = [Outcome(*json.loads(line)) for line in output.read_text().splitlines()]
    if len(outcomes) < count:
        seed = first + len(outcomes)
        outcomes.append(Outcome(seed, "failed", f"{ended}\n{errors.read_text()[-1500:]}"))
    return outcomes


def prepare(file_bytes: bytes, folder: Path) -> Callable[[], None]:
    """The work of `ingest` with a file: check it, then read, select and write all its events."""
    from hep_core.input_errors import InputFileError
    from hep_core.storage import size_and_time
    from ingestion.file_info import FileInfo
    from ingestion.files import SourceFile
    from ingestion.inspection import inspect_file
    from ingestion.range_output import ingest_range, split_entries
    from ingestion.settings import IngestSettings, SampleSettings

    path = folder / "spoiled.root"
    path.write_bytes(file_bytes)
    settings = IngestSettings()

    def inspect(file: Path) -> FileInfo:
        size, modified = size_and_time(str(file))
        source = SourceFile(SampleSettings(name="qcd", label=0, files=[str(file)]), str(file))
        return inspect_file(source, settings, size=size, modified=modified)

    def work() -> None:
        try:
            for entries in split_entries([inspect(path)]):
                ingest_range(entries, settings, folder)
            for written in folder.glob("*.parquet"):
                written.unlink()
        finally:
            try:
                inspect(GOOD_FILE)
            except InputFileError as error:
                raise SpoiledProcessError(str(error)) from error

    return work


def judge(work: Callable[[], None]) -> tuple[str, str]:
    """Do some work; its verdict, and the message of it."""
    from hep_core.input_errors import InputFileError

    start_bytes = _peak_resident_bytes()
    verdict, text = "accepted", ""
    try:
        work()
    except InputFileError as error:
        verdict, text = _judge_error(error)
    except BaseException:  # noqa: BLE001 - the parent reports any error
        verdict, text = "failed", traceback.format_exc()[-2500:]
    growth = _peak_resident_bytes() - start_bytes
    if verdict != "failed" and growth > GROWTH_BYTES:
        return "failed", f"took {growth / 2**20:.0f} MiB"
    return verdict, text


def _judge_error(error: BaseException) -> tuple[str, str]:
    """The verdict on an error for the user: it names the file in a short message."""
    name = type(error).__name__
    message = str(error)
    if _memory_ran_out(error):
        return "failed", f"out of memory, called {name}: {message[:500]}"
    if "spoiled." not in message or len(message) > 20_000:
        text = f"a message of {len(message)} letters that names no file: {message[:500]}"
        return "failed", text
    return "refused", f"{name}: {message[:500]}"


def try_content(file_bytes: bytes, folder: Path) -> tuple[str, str]:
    """The verdict on one file, in this process."""
    return judge(prepare(file_bytes, folder))


def _memory_ran_out(error: BaseException | None) -> bool:
    return any(isinstance(cause, MemoryError) for cause in error_and_causes(error))


def _peak_resident_bytes() -> int:
    """The most real memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(first: int, count: int, folder: Path) -> None:
    # All imports, before memory is bounded.
    prepare(mutated_root(first), folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in range(first, first + count):
        print(json.dumps([seed, *judge(prepare(mutated_root(seed), folder))]), flush=True)  # noqa: T201 - to the parent


def mutated_root(seed: int) -> bytes:
    """A bundled ROOT file with one to three things wrong."""
    rng = np.random.default_rng([*b"root", seed])
    paths = sorted(SAMPLES.glob("*.root"))
    path = paths[rng.integers(len(paths))]
    # Nearly all of a file is compressed, and most spoiled bytes end in the decompression. So half
    # of the cases have the tree's description without compression, and spoil its meaning.
    is_plain = bool(rng.integers(2))
    good_bytes, tree_start = with_plain_tree(path) if is_plain else (path.read_bytes(), 0)
    file_bytes = bytearray(good_bytes)
    for _ in range(rng.integers(1, 4)):
        low, high = 0, len(file_bytes)
        if is_plain:
            low = min(tree_start, high - 1)
        elif rng.random() < 0.5:
            # Header, the first directory and its keys.
            high = min(high, 400)
        mutate = _ROOT_MUTATIONS[rng.integers(len(_ROOT_MUTATIONS))]
        mutate(file_bytes, rng, low, max(high, low + 1))
    return bytes(file_bytes)


@cache
def with_plain_tree(path: Path) -> tuple[bytes, int]:
    """A file with the description of its tree, uncompressed, at its end, and its start."""
    with uproot.open(path) as file:
        key = file.key("Delphes")
        old_start = int(key.fSeekKey)
        key_length = int(key.fKeylen)
        chunk, cursor = key.get_uncompressed_chunk_cursor()
        description = bytes(np.asarray(chunk.raw_data[cursor.index :], dtype=np.uint8))
    file_bytes = bytearray(path.read_bytes())
    new_start = len(file_bytes)
    head = bytearray(file_bytes[old_start : old_start + key_length])
    fields = list(struct.unpack_from(_KEY_HEAD, head))
    length = fields[2]
    # fNbytes, and fSeekKey.
    fields[0] = key_length + length
    fields[6] = new_start
    struct.pack_into(_KEY_HEAD, head, 0, *fields)

    # The directory's copy of the key also has the old place of the tree.
    old_place = file_bytes[old_start + _SEEK_OFFSET : old_start + key_length]
    for position in _positions_of(file_bytes, old_place):
        start = position - _SEEK_OFFSET
        if start != old_start:
            file_bytes[start : start + key_length] = head
    file_bytes += head + description[:length]
    # fEND of the file's header.
    struct.pack_into(">i", file_bytes, 12, len(file_bytes))
    return bytes(file_bytes), new_start + key_length


def _positions_of(file_bytes: bytearray, chunk: bytearray) -> list[int]:
    """All positions of some bytes in a file."""
    positions = []
    position = file_bytes.find(chunk)
    while position >= 0:
        positions.append(position)
        position = file_bytes.find(chunk, position + 1)
    return positions


def _flip_bits(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    for at in rng.integers(low, high, size=rng.integers(1, 9)):
        file_bytes[at] ^= 1 << int(rng.integers(8))


def _random_bytes(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    at = int(rng.integers(low, high))
    size = min(high - at, int(rng.integers(1, 33)))
    file_bytes[at : at + size] = rng.bytes(size)


def _odd_number(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    """Sizes, counts and places in a file are 4 or 8 bytes, the highest first."""
    layout = ">i" if rng.integers(2) else ">q"
    odd = [0, 1, -1, 2, 255, 0x7FFF, 2**30, 2**31 - 1, -(2**31)]
    value = odd[rng.integers(len(odd))]
    if layout == ">q" and rng.integers(2):
        value = int(rng.integers(-(2**63), 2**63 - 1))
    at = int(rng.integers(low, high))
    if at + 8 <= len(file_bytes):
        struct.pack_into(layout, file_bytes, at, value)


def _zeros(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    file_bytes[at : at + size] = bytes(size)


def _same_block_twice(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    target = int(rng.integers(low, high - size + 1))
    file_bytes[target : target + size] = file_bytes[at : at + size]


def _inserted_block(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    file_bytes[at:at] = file_bytes[at : at + size]


def _swapped_blocks(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    at, size = _block(rng, low, high)
    target = int(rng.integers(low, high - size + 1))
    block = file_bytes[at : at + size]
    file_bytes[at : at + size] = file_bytes[target : target + size]
    file_bytes[target : target + size] = block


def _cut_off(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    """Half of them with a header that knows of it."""
    del file_bytes[max(100, int(rng.integers(low, high))) :]
    if rng.integers(2):
        struct.pack_into(">i", file_bytes, 12, len(file_bytes))


def _header_field(file_bytes: bytearray, rng: Generator, low: int, high: int) -> None:
    """A number of the header, from the version and fBEGIN to fSeekInfo and fNbytesInfo."""
    at = (4, 8, 12, 16, 20, 24, 28, 32, 33, 37, 41)[rng.integers(11)]
    any_number = int(rng.integers(-(2**31), 2**31 - 1, dtype=np.int64))
    # Of any order of magnitude.
    shifted_number = any_number >> int(rng.integers(31))
    struct.pack_into(">i", file_bytes, at, shifted_number)


def _block(rng: Generator, low: int, high: int) -> tuple[int, int]:
    """Somewhere between two places; of any order of magnitude up to 64 kB."""
    size = min(high - low, int(2 ** rng.uniform(0, 16)))
    return int(rng.integers(low, high - size + 1)), size


_ROOT_MUTATIONS: Final[tuple[Callable[[bytearray, Generator, int, int], None], ...]] = (
    _flip_bits, _random_bytes, _odd_number, _odd_number, _zeros, _same_block_twice, _inserted_block, _swapped_blocks,
    _cut_off, _header_field,
)  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
