"""The Spark job: tasks read ranges of entries with uproot and write events Parquet with pyarrow themselves.

Spark only schedules: measured on 2 cores, sending nested events through the JVM costs nine times the CPU of writing
them where they are made. A task writes under a name of its own and renames at the end; its content depends on nothing
but its range, so a retried or speculative attempt puts the same bytes in the same place.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from pyspark import Accumulator, SparkContext

from ingestion.errors import BadFilesError, EmptySampleError, IngestionError
from ingestion.files import FileInfo
from ingestion.reader import read_events, select_events
from ingestion.settings import IngestSettings, SampleSettings


class EntryRange(NamedTuple):
    """What one task reads."""

    info: FileInfo
    start: int
    stop: int


class EventsPart(NamedTuple):
    """What came of one range; `name` is empty when no event of it passed."""

    sample: str
    path: str
    file_uuid: str
    start: int
    stop: int
    name: str
    counters: dict[str, int]


class IngestResult(NamedTuple):
    """All parts, and the counters of each sample."""

    parts: list[EventsPart]
    counters: dict[str, dict[str, int]]


def ingest(
    spark: SparkContext,
    infos: Sequence[FileInfo],
    samples: Sequence[SampleSettings],
    settings: IngestSettings,
    out_dir: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> IngestResult:
    """Read all files into `out_dir/*.parquet` (an existing folder that every task can reach).

    Args:
        spark: The running context.
        infos: The checked files.
        samples: The samples that the files belong to.
        settings: Thresholds and names.
        out_dir: Where the events Parquet goes.
        done: Counts entries as tasks finish, for progress.
        num_tasks: Number of Spark tasks for so many pieces of work.

    Raises:
        IngestionError: A file cannot be read to its end.
        EmptySampleError: A sample has no events, or none survives.
    """
    ranges = list(split_entries(infos, settings.entries_per_task))
    folder = str(out_dir)

    def run(work: EntryRange) -> EventsPart | IngestionError:
        try:
            part = ingest_range(work, settings, Path(folder))
        except IngestionError as problem:
            # Raised here, Spark would retry it four times and bury it in Java: the driver raises it.
            return problem
        done.add(work.stop - work.start)
        return part

    outcomes = spark.parallelize(ranges, num_tasks(len(ranges))).map(run).collect() if ranges else []
    problems = [outcome for outcome in outcomes if isinstance(outcome, IngestionError)]
    if problems:
        raise BadFilesError.of(problems)
    parts = [outcome for outcome in outcomes if isinstance(outcome, EventsPart)]
    counters = {
        sample.name: sum_counters(part.counters for part in parts if part.sample == sample.name) for sample in samples
    }
    _refuse_empty(counters)
    return IngestResult(parts, counters)


def split_entries(infos: Iterable[FileInfo], entries_per_task: int) -> Iterator[EntryRange]:
    """Ranges of at most `entries_per_task` entries, nearly equal within a file; none for an empty file.

    Examples:
        >>> info = FileInfo("qcd", 0, "a.root", "u", 10, 1, "", ())
        >>> [(work.start, work.stop) for work in split_entries([info], 4)]
        [(0, 3), (3, 6), (6, 10)]
    """
    for info in infos:
        num_ranges = -(-info.entries // entries_per_task)
        for index in range(num_ranges):
            yield EntryRange(info, index * info.entries // num_ranges, (index + 1) * info.entries // num_ranges)


def ingest_range(work: EntryRange, settings: IngestSettings, out_dir: Path) -> EventsPart:
    """Read, select and write one range of entries.

    Raises:
        IngestionError: The range cannot be read.
    """
    raw = read_events(work.info, settings, start=work.start, stop=work.stop)
    table, counters = select_events(raw, work.info, settings)
    name = ""
    if table.num_rows:
        name = f"{work.info.uuid}-{work.start:09d}.parquet"
        unfinished = out_dir / f".{name}.{uuid.uuid4().hex}"
        pq.write_table(table, unfinished, compression="zstd", compression_level=1)
        unfinished.replace(out_dir / name)
    return EventsPart(work.info.sample, work.info.path, work.info.uuid, work.start, work.stop, name, counters)


def sum_counters(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add counters key by key; zeros when there is nothing to add.

    Examples:
        >>> sum_counters([{"entries": 2, "events": 1}, {"entries": 3, "events": 3}])["entries"]
        5
    """
    total = dict.fromkeys(("entries", "rejected_nonfinite", "rejected_no_lepton", "events"), 0)
    for counter in counters:
        for key, value in counter.items():
            total[key] += value
    return total


def _refuse_empty(counters: dict[str, dict[str, int]]) -> None:
    for sample, counter in counters.items():
        if counter["events"]:
            continue
        cutflow = "\n".join(f"  {key:<20}{value:>10}" for key, value in counter.items())
        cause = "its files hold no entries" if counter["entries"] == 0 else "none of its events passes"
        raise EmptySampleError(
            f"sample '{sample}': {cause}. Its cutflow:\n{cutflow}\n"
            f"Check its files and the thresholds under ingest: in the config."
        )
