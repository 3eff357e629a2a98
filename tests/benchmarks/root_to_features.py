"""Benchmark: ROOT to features, as ratios to bare reading (`make bench`).

Without files of the user the events are rotated copies of the bundled ones. Their files hold the
needed branches only, which makes reading cheap; ratios of files of Delphes compare with those of
other programs. All numbers are CPU seconds (user and system, of all processes) per event: the slope
between two numbers of events, so that fixed costs drop out. Compared runs alternate, and medians
are shown.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import uproot
from load_test import TREE, branch_map, write_load_test

from features.kernel_pass import EventsFile, feature_rows
from features.kernels import build_features
from features.mixing_pass import write_group
from features.normalisation import GeneratedSample
from features.settings import FeatureSettings
from features.spark_job import make_features
from features.spark_tasks import keep_freed_memory
from ingestion.file_info import FileInfo
from ingestion.files import expand, inventory
from ingestion.known_layouts import LAYOUTS, BranchLayout
from ingestion.reader import read_events
from ingestion.selection import select_events
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.spark_job import ingest
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_session import SparkProvider

CLASSES = ["QCD", "ttbar", "W+jets"]
#: Names of samples, in the order of their labels, by the prefix of file names.
SAMPLE_BY_PREFIX = {"qcd": "a", "ttbar": "b", "wjets": "c"}
_EVENTS_PER_FILE = 480
SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def alternate_classes(infos: list[FileInfo]) -> list[FileInfo]:
    """The files of the classes in turn, so that the first three hold all classes.

    Raises:
        SystemExit: A class has no file.
    """
    infos_by_sample = []
    for prefix, sample in SAMPLE_BY_PREFIX.items():
        sample_infos = [info for info in infos if info.sample == sample]
        if not sample_infos:
            sys.exit(f"every class needs a file: no name begins with {prefix}_")
        infos_by_sample.append(sample_infos)
    turns = chain.from_iterable(zip_longest(*infos_by_sample))
    return [info for info in turns if info is not None]


def first_files(infos: list[FileInfo], num_events: int) -> list[FileInfo]:
    """The first files, with at least a number of events together and at least one of each class.

    Raises:
        SystemExit: There are fewer events.
    """
    totals = np.cumsum([info.entries for info in infos])
    if totals[-1] < num_events:
        sys.exit(f"the files have {totals[-1]} events, and --events asks for {num_events}")
    return infos[: max(int(np.searchsorted(totals, num_events)) + 1, len(CLASSES))]


def bare_read(infos: list[FileInfo], settings: IngestSettings) -> None:
    """Read the needed branches by uproot alone, with Python's zlib as it does by default."""
    decompressor = uproot.compression._DecompressZLIB
    fast_library = decompressor.library
    decompressor.library = "zlib"
    branches = list(LAYOUTS[BranchLayout.DELPHES].branches(settings.branch_map).values())
    for info in infos:
        with uproot.open({info.path: settings.tree}) as tree:
            tree.arrays([name for name in branches if name in tree])
    decompressor.library = fast_library


def one_process(infos: list[FileInfo], settings: IngestSettings, folder: Path) -> None:
    """ROOT to HLF and LLF Parquet without Spark, without events Parquet and without mixing."""
    keep_freed_memory()
    features = FeatureSettings()
    for index, info in enumerate(infos):
        blocks = []
        for raw in read_events(info, settings, start=0, stop=info.entries):
            events = select_events(raw, info, settings).table
            blocks.append(feature_rows(events, build_features(events, features)))
        write_group(0, index, pa.concat_tables(blocks), CLASSES, folder)


def both_stages(
    provider: SparkProvider, infos: list[FileInfo], settings: IngestSettings, folder: Path
) -> float:
    """Ingest and features under Spark; returns the bytes of an event in the features Parquet."""
    spark = provider.context()
    (folder / "events").mkdir(parents=True)
    (folder / "features" / "kernels").mkdir(parents=True)
    samples = []
    generated = {}
    for label, name in enumerate(SAMPLE_BY_PREFIX.values()):
        samples.append(SampleSettings(name=name, label=label, files=["-"]))
        generated[name] = GeneratedSample(label, None, 1, 1.0)
    counter = spark.accumulator(0)
    ingested = ingest(
        spark,
        infos,
        samples,
        settings,
        folder / "events",
        done=counter,
        num_tasks=provider.num_tasks,
    )
    events_files = [
        EventsFile(part.name, part.sample, part.digest, str(folder / "events" / part.name))
        for part in ingested.parts
    ]
    dataset = make_features(
        spark,
        events_files,
        generated,
        FeatureSettings(),
        CLASSES,
        folder / "features",
        kernels=folder / "features" / "kernels",
        event_counter=counter,
        num_tasks=provider.num_tasks,
    ).dataset
    num_bytes = num_events = 0
    for split in dataset.splits:
        num_bytes += sum(path.stat().st_size for path in dataset.files(split))
        num_events += dataset.num_rows(split)
    return num_bytes / num_events


def tree_cpu() -> float:
    """CPU seconds of this process and all that it started, ended ones included."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Measurement(NamedTuple):
    """One run."""

    num_events: int
    cpu_seconds: float
    wall_seconds: float


class Bench(NamedTuple):
    """The files of a benchmark."""

    infos: list[FileInfo]
    settings: IngestSettings
    """How the files are read."""
    folder: Path
    """Folder for results."""
    sizes: tuple[int, int]
    """The two numbers of events."""

    def cost(
        self,
        work: Callable[[list[FileInfo], Path], object],
        *,
        cpu: Callable[[], float] = time.process_time,
    ) -> tuple[float, float]:
        """Run once with each size.

        `cpu` reads the clock, by default of this process alone, in which Spark idles.

        Returns:
            CPU microseconds of an event, and fixed seconds of wall time of a job.
        """
        measurements = []
        for size in self.sizes:
            files = first_files(self.infos, size)
            folder = self.folder / uuid.uuid4().hex
            (folder / "train").mkdir(parents=True)
            cpu_start, wall_start = cpu(), time.monotonic()
            work(files, folder)
            cpu_seconds = cpu() - cpu_start
            wall_seconds = time.monotonic() - wall_start
            num_events = sum(info.entries for info in files)
            measurements.append(Measurement(num_events, cpu_seconds, wall_seconds))
            shutil.rmtree(folder)
        small, large = measurements
        more_events = large.num_events - small.num_events
        cpu_per_event = (large.cpu_seconds - small.cpu_seconds) / more_events
        wall_per_event = (large.wall_seconds - small.wall_seconds) / more_events
        return 1e6 * cpu_per_event, small.wall_seconds - wall_per_event * small.num_events


def inspect_files(
    files_by_sample: Mapping[str, Iterable[Path | str]], settings: IngestSettings
) -> list[FileInfo]:
    """The checked files of samples."""
    samples = []
    for label, name in enumerate(SAMPLE_BY_PREFIX.values()):
        files = [str(file) for file in files_by_sample[name]]
        if files:
            samples.append(SampleSettings(name=name, label=label, files=files))
    return inventory(expand(samples), settings).infos


def write_copies(folder: Path, num_events: int) -> tuple[list[FileInfo], IngestSettings]:
    """Write rotated copies of the bundled events, with ZLIB level 1 as Delphes does."""
    folder.mkdir()
    bundled_files = {
        sample: sorted(SAMPLES.glob(f"{prefix}_*")) for prefix, sample in SAMPLE_BY_PREFIX.items()
    }
    files_by_sample = write_load_test(
        inspect_files(bundled_files, IngestSettings()),
        IngestSettings(),
        math.ceil(num_events / len(CLASSES)),
        folder,
        rng=np.random.default_rng(1),
        events_per_file=_EVENTS_PER_FILE,
    )
    settings = IngestSettings(tree=TREE, branch_map=branch_map())
    return inspect_files(files_by_sample, settings), settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "files",
        nargs="*",
        help="Delphes files named qcd_*, ttbar_*, wjets_*; else the bundled events",
    )
    parser.add_argument(
        "--events", type=int, nargs=2, default=(10_000, 100_000), help="the two sizes"
    )
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if arguments.files:
            settings = IngestSettings()
            files_by_sample: dict[str, list[str]] = {}
            for prefix, sample in SAMPLE_BY_PREFIX.items():
                files_by_sample[sample] = [
                    path
                    for path in sorted(arguments.files)
                    if Path(path).name.startswith(f"{prefix}_")
                ]
            infos = inspect_files(files_by_sample, settings)
        else:
            infos, settings = write_copies(Path(folder) / "sample", max(arguments.events))
        infos = alternate_classes(infos)
        few, many = arguments.events
        if first_files(infos, few) == first_files(infos, many):
            sys.exit(f"--events: {few} and {many} events need the same files; give other sizes")
        provider = SparkProvider(SparkSettings(master="local[2]"))
        run(Bench(infos, settings, Path(folder), (few, many)), provider, arguments.repeats)
        provider.stop()


def run(bench: Bench, provider: SparkProvider, repeats: int) -> None:
    """Warm up, measure in turns, and print medians."""
    bytes_per_event: list[float] = []

    def read_work(files: list[FileInfo], _: Path) -> None:
        bare_read(files, bench.settings)

    def process_work(files: list[FileInfo], folder: Path) -> None:
        one_process(files, bench.settings, folder)

    def spark_work(files: list[FileInfo], folder: Path) -> None:
        bytes_per_event.append(both_stages(provider, files, bench.settings, folder / "run"))

    # Starting the JVM, compiling and the first Python workers are no cost of an event.
    read_work(bench.infos, bench.folder)
    bench.cost(lambda files, folder: process_work(files[:1], folder))
    bench.cost(lambda files, folder: spark_work(files[:9], folder), cpu=tree_cpu)
    read_costs = []
    process_costs = []
    spark_costs = []
    fixed_seconds = []
    for _ in range(repeats):
        read_cost, _ = bench.cost(read_work)
        process_cost, _ = bench.cost(process_work)
        spark_cost, job_seconds = bench.cost(spark_work, cpu=tree_cpu)
        read_costs.append(read_cost)
        process_costs.append(process_cost)
        spark_costs.append(spark_cost)
        fixed_seconds.append(job_seconds)
        sys.stdout.write(
            f"  run: read {read_cost:.0f}, one process {process_cost:.0f}, "
            f"spark {spark_cost:.0f} us/event\n"
        )
        sys.stdout.flush()
    read = statistics.median(read_costs)
    seconds = statistics.median(fixed_seconds)
    lines = [
        f"bare uproot reading        {read:8.0f} us/event  {1e6 / read:8.0f} events/s per core",
        cost_line("(a) one process", process_costs, read_costs, goal=2.3),
        cost_line("(b) both stages on Spark", spark_costs, read_costs, goal=3.3),
        f"fixed cost of the two Spark jobs: {seconds:.1f} s (Spark already started)",
        f"features on disk: {bytes_per_event[-1] / 1000:.1f} kB an event (at most 16)",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def cost_line(name: str, costs: list[float], read_costs: list[float], *, goal: float) -> str:
    """Median cost, rate, and ratio to reading, of runs in turn."""
    cost = statistics.median(costs)
    ratios = np.divide(costs, read_costs)
    return (
        f"{name:<27}{cost:8.0f} us/event  {1e6 / cost:8.0f} events/s per core  "
        f"{np.median(ratios):5.2f} x reading (at most {goal})"
    )


if __name__ == "__main__":
    main()
