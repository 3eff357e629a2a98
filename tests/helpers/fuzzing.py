"""Spoiled ROOT files tried one after the other in a child of bounded memory, which is watched by the clock.

python fuzzing.py <first seed> <seeds> <folder>      the child: a line of JSON for each
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, NamedTuple

from spoiled_inputs import SAMPLES, mutated_root

ROOT: Final = Path(__file__).resolve().parents[2]
#: Memory of the child; without inputs it takes half a GiB.
MEMORY_BYTES: Final = 4 << 30
#: Of real memory, by one input: the biggest file has 4 MB.
GROWTH_BYTES: Final = 1 << 30
SECONDS_EACH: Final = 20.0
#: Until the child has imported what it needs.
SECONDS_TO_START: Final = 120.0


GOOD_FILE: Final = SAMPLES / "wjets_13TeV_PU20_1.root"


class Outcome(NamedTuple):
    """What became of one spoiled file."""

    seed: int
    verdict: str
    """`accepted`, `refused` (by an error with a message for the user), or `failed`."""
    words: str
    seconds: float


class SpoiledProcessError(Exception):
    """After a spoiled file, good ones cannot be read any more."""


def fuzz(first: int, count: int, folder: Path) -> list[Outcome]:
    """Try `count` seeds from `first` on; a child that dies or hangs is one failure, and the next continues after it."""
    outcomes: list[Outcome] = []
    folder.mkdir(parents=True, exist_ok=True)
    while len(outcomes) < count:
        next_seed = first + len(outcomes)
        outcomes += _run_child(next_seed, count - len(outcomes), folder)
    return outcomes


def _run_child(first: int, count: int, folder: Path) -> list[Outcome]:
    """Up to the last seed, or the first that ends the child."""
    command = [sys.executable, __file__, str(first), str(count), str(folder)]
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    found: list[Outcome] = []
    with (folder / "stderr.txt").open("w+", encoding="utf-8") as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert child.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        pump = threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True)
        pump.start()
        ending = ""
        try:
            started = lines.get(timeout=SECONDS_TO_START)
            while started and len(found) < count:
                line = lines.get(timeout=SECONDS_EACH)
                if line is None:
                    break
                found.append(Outcome(*json.loads(line)))
        except queue.Empty:
            ending = f"no answer within {SECONDS_EACH} s"
            child.kill()
        child.wait(timeout=60)
        pump.join(timeout=60)
        child.stdout.close()
        spoiled = bool(found) and SpoiledProcessError.__name__ in found[-1].words
        if len(found) < count and not spoiled:
            errors.seek(0)
            last_words = errors.read()[-1500:]
            ending = ending or f"the child ended with status {child.returncode}"
            found.append(Outcome(first + len(found), "failed", f"{ending}\n{last_words}", SECONDS_EACH))
    return found


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def summary(outcomes: list[Outcome]) -> dict[str, int]:
    """How many of each verdict."""
    return {verdict: sum(each.verdict == verdict for each in outcomes) for verdict in ("accepted", "refused", "failed")}


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
        return inspect(
            SourceFile(SampleSettings(name="qcd", label=0, files=[str(file)]), str(file)),
            settings,
            size=size,
            modified=modified,
        )

    def read(file: Path) -> None:
        info = look(file)
        for entries in split_entries([info]):
            ingest_range(entries, settings, folder)
        for written in folder.glob("*.parquet"):
            written.unlink()

    def work() -> None:
        try:
            read(path)
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # All imports, before memory is bounded.
    prepare(first, folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", flush=True)  # noqa: T201 - to the parent
    for seed in range(first, first + count):
        work = prepare(seed, folder)
        started = time.perf_counter()
        verdict, words = judge(work)
        outcome = Outcome(seed, verdict, words, time.perf_counter() - started)
        print(json.dumps(outcome), flush=True)  # noqa: T201 - to the parent
        if SpoiledProcessError.__name__ in words:
            # The next input starts a new child.
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
