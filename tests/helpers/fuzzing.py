"""Spoiled ROOT files tried one after the other in a child of bounded memory.

python fuzzing.py <first seed> <seeds> <folder>      the child: a line of JSON for each
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from spoiled_inputs import SAMPLES, mutated_root

ROOT: Final = Path(__file__).resolve().parents[2]
#: Memory of the child; without inputs it takes half a GiB.
MEMORY_BYTES: Final = 4 << 30
#: Of real memory, by one input: the biggest file has 4 MB.
GROWTH_BYTES: Final = 1 << 30
GOOD_FILE: Final = SAMPLES / "wjets_13TeV_PU20_1.root"


class Outcome(NamedTuple):
    """What became of one spoiled file."""

    seed: int
    verdict: str
    """`accepted`, `refused` (by an error with a message for the user), or `failed`."""
    words: str


class SpoiledProcessError(Exception):
    """After a spoiled file, good ones cannot be read any more."""


def fuzz(first: int, count: int, folder: Path, *, seconds: float) -> list[Outcome]:
    """Try `count` seeds from `first` on; where the child dies or hangs is a failure, and the last outcome."""
    command = [sys.executable, __file__, str(first), str(count), str(folder)]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    said, errors = folder / "said.jsonl", folder / "errors.txt"
    with said.open("w") as out, errors.open("w") as noise:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=noise, cwd=folder, timeout=seconds, check=False,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
            ended = f"the child ended with status {done.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"the child was not done within {seconds} s"
    found = [Outcome(*json.loads(line)) for line in said.read_text().splitlines()]
    if len(found) < count:
        found.append(Outcome(first + len(found), "failed", f"{ended}\n{errors.read_text()[-1500:]}"))
    return found


def summary(outcomes: list[Outcome]) -> Counter[str]:
    """How many of each verdict."""
    return Counter(each.verdict for each in outcomes)


def prepare(seed: int, folder: Path) -> Callable[[], None]:
    """What `ingest` does with a file: check it, then read, select and write all its events."""
    from ingestion.errors import IngestionError
    from ingestion.files import FileInfo, SourceFile, inspect
    from ingestion.settings import IngestSettings, SampleSettings
    from ingestion.spark_job import ingest_range, split_entries
    from ingestion.storage import size_and_time

    path = folder / "spoiled.root"
    path.write_bytes(mutated_root(seed))
    settings = IngestSettings()

    def look(file: Path) -> FileInfo:
        size, modified = size_and_time(str(file))
        source = SourceFile(SampleSettings(name="qcd", label=0, files=[str(file)]), str(file))
        return inspect(source, settings, size=size, modified=modified)

    def work() -> None:
        try:
            for entries in split_entries([look(path)]):
                ingest_range(entries, settings, folder)
            for written in folder.glob("*.parquet"):
                written.unlink()
        finally:
            try:
                look(GOOD_FILE)
            except IngestionError as error:
                raise SpoiledProcessError(str(error)) from error

    return work


def judge(work: Callable[[], None]) -> tuple[str, str]:
    """Do it; the verdict and the words of it."""
    from ingestion.errors import IngestionError

    before = _resident_bytes()
    try:
        work()
    except IngestionError as error:
        message = str(error)
        if _memory_ran_out(error):
            return "failed", f"out of memory, called {type(error).__name__}: {message[:500]}"
        if "spoiled." not in message or len(message) > 20_000:
            return "failed", f"a message of {len(message)} letters that names no file: {message[:500]}"
        verdict, words = "refused", f"{type(error).__name__}: {message[:500]}"
    except BaseException:  # noqa: BLE001 - the parent reports any error
        return "failed", traceback.format_exc()[-2500:]
    else:
        verdict, words = "accepted", ""
    grown = _resident_bytes() - before
    if grown > GROWTH_BYTES:
        return "failed", f"took {grown / 2**20:.0f} MiB"
    return verdict, words


def _memory_ran_out(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _resident_bytes() -> int:
    """The most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(first: int, count: int, folder: Path) -> None:
    """The child."""
    # All imports, before memory is bounded.
    prepare(first, folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for seed in range(first, first + count):
        print(json.dumps([seed, *judge(prepare(seed, folder))]), flush=True)  # noqa: T201 - to the parent


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
