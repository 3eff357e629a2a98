"""Benchmark: `features` of few and of many events (`make bench-many-events`).

Parts of ingested events are copied, with another file UUID in each copy, until there are enough
events. Each size runs in a process of its own, in turn, with a Spark of two slots that has warmed
up. With `--memory` the process runs in a cgroup of so much memory, which also holds its file cache:
then fewer events show what many events cost that no longer fit in the cache (needs the rights of
root).

Times and disk bytes are those of an ingested event.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from load_test import TREE, branch_map, write_load_test
from pyspark import Accumulator
from root_to_features import CLASSES, SAMPLE_BY_PREFIX, SAMPLES, inspect_files, tree_cpu
from small_cgroup import cgroup_with

from features.kernel_pass import EventsFile
from features.normalisation import GeneratedSample
from features.settings import FeatureSettings
from features.spark_job import FeaturesResult, make_features
from hep_core.cgroups import read_system_file
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.spark_job import ingest
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_session import SparkProvider

_PARTS: Final = "parts.json"
_SECONDS_BETWEEN_SAMPLES: Final = 0.2
_SPARK: Final = SparkSettings(master="local[2]", driver_memory="512m")


class Cost(NamedTuple):
    """What one run of `features` cost."""

    events: int
    selected: int
    kernel_seconds: float
    """Wall seconds of the first pass."""
    mixing_seconds: float
    """Wall seconds of the second pass, and until all bytes are on the disk."""
    cpu_seconds: float
    """CPU seconds of all processes."""
    read_bytes: int
    """Bytes read from the disk."""
    written_bytes: int
    """Bytes written to the disk."""
    peak_bytes: int
    """Highest memory of all processes together, without files."""
    kernel_bytes: int
    """Bytes of the kernel outputs."""
    feature_bytes: int
    """Bytes of the features Parquet."""

    @property
    def seconds(self) -> float:
        """Wall seconds of both passes."""
        return self.kernel_seconds + self.mixing_seconds


def ingest_once(folder: Path, num_events: int) -> list[EventsFile]:
    """Ingest rotated copies of the bundled events."""
    bundled_files = {
        sample: sorted(SAMPLES.glob(f"{prefix}_*")) for prefix, sample in SAMPLE_BY_PREFIX.items()
    }
    (folder / "root").mkdir()
    files_by_sample = write_load_test(
        inspect_files(bundled_files, IngestSettings()),
        IngestSettings(),
        math.ceil(num_events / len(CLASSES)),
        folder / "root",
        rng=np.random.default_rng(1),
    )
    settings = IngestSettings(tree=TREE, branch_map=branch_map())
    samples = [
        SampleSettings(name=name, label=label, files=["-"])
        for label, name in enumerate(SAMPLE_BY_PREFIX.values())
    ]
    (folder / "events").mkdir()
    provider = SparkProvider(_SPARK)
    spark = provider.context()
    ingested = ingest(
        spark,
        inspect_files(files_by_sample, settings),
        samples,
        settings,
        folder / "events",
        done=spark.accumulator(0),
        num_tasks=provider.num_tasks,
    )
    provider.stop()
    shutil.rmtree(folder / "root")
    return [
        EventsFile(part.name, part.sample, part.digest, str(folder / "events" / part.name))
        for part in ingested.parts
    ]


def copy_parts(parts: list[EventsFile], num_copies: int, folder: Path) -> None:
    """Write copies of parts, each with other file UUIDs, and their list."""
    folder.mkdir()
    copies = []
    for number in range(num_copies):
        for part in parts:
            name = f"{number}-{part.name}"
            _copy_with_new_uuid(Path(part.path), folder / name)
            copies.append([name, part.sample, part.digest, str(folder / name)])
    (folder / _PARTS).write_text(json.dumps(copies), encoding="utf-8")


def _copy_with_new_uuid(part: Path, copy: Path) -> None:
    """Copy an events part, row group by row group, with one new UUID for all events."""
    file_uuid = str(uuid.uuid4())
    with (
        pq.ParquetFile(part) as source,
        pq.ParquetWriter(
            copy, source.schema_arrow, compression="lz4", write_page_checksum=True
        ) as writer,
    ):
        column = source.schema_arrow.get_field_index("file_uuid")
        for group in range(source.num_row_groups):
            events = source.read_row_group(group)
            uuids = pa.repeat(file_uuid, events.num_rows)
            field = source.schema_arrow.field(column)
            writer.write_table(events.set_column(column, field, uuids))
    # The file is read from the disk later, as those of a night are.
    with copy.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Usage:
    """Memory and disk bytes of this process and its children."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        """Highest sum of the memory of all processes, without files."""
        self._first_io: dict[int, tuple[int, int]] = {}
        self._last_io: dict[int, tuple[int, int]] = {}

    def sample(self) -> None:
        """Read memory and disk bytes of all processes."""
        num_bytes = 0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            num_bytes += _anonymous_bytes(process.pid)
            with suppress(psutil.NoSuchProcess):
                io = process.io_counters()
                self._last_io[process.pid] = (io.read_bytes, io.write_bytes)
        # A process that started since has read and written all its bytes since.
        if not self._first_io:
            self._first_io = dict(self._last_io)
        self.peak_bytes = max(self.peak_bytes, num_bytes)

    def disk_bytes(self) -> tuple[int, int]:
        """Bytes read from and written to disks since the first sample."""
        more_io = np.zeros(2, dtype=np.int64)
        for pid, last_io in self._last_io.items():
            more_io += np.subtract(last_io, self._first_io.get(pid, (0, 0)))
        num_read, num_written = more_io.tolist()
        return num_read, num_written


@contextmanager
def watch_processes() -> Iterator[Usage]:
    """Sample memory and disk of all processes until the context ends."""
    usage = Usage()
    usage.sample()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_SECONDS_BETWEEN_SAMPLES):
            usage.sample()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield usage
    finally:
        is_over.set()
        thread.join()
        usage.sample()


def _anonymous_bytes(pid: int) -> int:
    """Memory of a process without the files that it maps; 0 for one that has ended."""
    for line in read_system_file(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def features_of_parts(
    provider: SparkProvider, parts: list[EventsFile], folder: Path
) -> tuple[FeaturesResult, float]:
    """Run `features`; returns its result, and the time at which the second pass began."""
    spark = provider.context()
    mixing_starts: list[float] = []

    def count_mixed(_: int) -> AbstractContextManager[Accumulator[int]]:
        mixing_starts.append(time.monotonic())
        return nullcontext(spark.accumulator(0))

    (folder / "kernels").mkdir(parents=True)
    result = make_features(
        spark,
        parts,
        {
            name: GeneratedSample(label, None, 1, 1.0)
            for label, name in enumerate(SAMPLE_BY_PREFIX.values())
        },
        FeatureSettings(),
        CLASSES,
        folder,
        kernels=folder / "kernels",
        event_counter=spark.accumulator(0),
        num_tasks=provider.num_tasks,
        count_mixed=count_mixed,
    )
    return result, mixing_starts[0]


def measure(folder: Path) -> Cost:
    """Measure `features` of the parts in a folder, after a run that warms up."""
    parts = [EventsFile(*part) for part in json.loads((folder / _PARTS).read_text("utf-8"))]
    provider = SparkProvider(_SPARK)
    # The smallest number of parts that has all classes in all splits.
    first_parts = [next(part for part in parts if part.sample == name) for name in "abc"]
    features_of_parts(provider, first_parts, folder / "warm")
    shutil.rmtree(folder / "warm")
    os.sync()

    cpu, start = tree_cpu(), time.monotonic()
    with watch_processes() as usage:
        result, mixing_start = features_of_parts(provider, parts, folder / "features")
        os.sync()
    end = time.monotonic()
    read_bytes, written_bytes = usage.disk_bytes()
    cost = Cost(
        events=sum(output.counts["events"] for output in result.outputs),
        selected=sum(output.counts["selected"] for output in result.outputs),
        kernel_seconds=mixing_start - start,
        mixing_seconds=end - mixing_start,
        cpu_seconds=tree_cpu() - cpu,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        peak_bytes=usage.peak_bytes,
        kernel_bytes=sum(output.size for output in result.outputs),
        feature_bytes=sum(
            path.stat().st_size
            for split in result.dataset.splits
            for path in result.dataset.files(split)
        ),
    )
    provider.stop()
    return cost


def measure_in_child(folder: Path, memory_bytes: int | None) -> Cost:
    """Measure in a process of its own, with a limit on its memory if there is one."""
    limit: AbstractContextManager[list[str]] = nullcontext([])
    if memory_bytes is not None:
        limit = cgroup_with(memory_bytes=memory_bytes)
    with limit as words_before:
        command = [*words_before, sys.executable, __file__, "--measure", str(folder)]
        completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    fields: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return Cost(**fields)


def table_line(cost: Cost, first: Cost) -> str:
    """The numbers of an event, and the time against that of the first size."""
    ratio = (cost.seconds / cost.events) / (first.seconds / first.events)
    per_event = [
        1e6 * cost.kernel_seconds,
        1e6 * cost.mixing_seconds,
        1e6 * cost.cpu_seconds,
        cost.read_bytes / 1e3,
        cost.written_bytes / 1e3,
    ]
    numbers = "".join(f"{number / cost.events:>10.1f}" for number in per_event)
    return (
        f"{cost.events:>9}{numbers}{cost.peak_bytes / 1e9:>9.2f}"
        f"{cost.kernel_bytes / cost.selected / 1e3:>9.2f}"
        f"{cost.feature_bytes / cost.selected / 1e3:>9.2f}{ratio:>8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[30_000, 100_000, 300_000])
    parser.add_argument("--memory", type=float, help="limit on the memory, with file cache [GB]")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each size, in turn")
    parser.add_argument("--folder", type=Path, help="where to work; else a temporary folder")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        sys.stdout.write(json.dumps(measure(arguments.measure)._asdict()) + "\n")
        return
    memory_bytes = None if arguments.memory is None else int(arguments.memory * 1e9)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder_name:
        folder = Path(folder_name)
        first_size = arguments.events[0]
        parts = ingest_once(folder, first_size)
        sys.stdout.write(
            "            us of wall time and CPU time, kB of disk of an event     GB  kB of a selected\n"
            "   events   kernels    mixing       CPU      read   written     peak  outputs features"
            "   ratio\n"
        )
        first_cost = None
        for _ in range(arguments.repeats):
            for size in arguments.events:
                copy_parts(parts, round(size / first_size), folder / "copies")
                cost = measure_in_child(folder / "copies", memory_bytes)
                shutil.rmtree(folder / "copies")
                first_cost = first_cost or cost
                sys.stdout.write(table_line(cost, first_cost) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
