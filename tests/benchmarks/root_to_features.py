"""Benchmark: ROOT to features, as ratios to bare reading (`make bench`).

Without files of one's own the events are turned copies of the bundled ones. Their files hold the needed branches only,
which makes reading cheap; ratios to compare with those of other programs are those of files of Delphes. All numbers are
CPU seconds (user and system, of all processes) per event: the slope between two numbers of events, so that fixed costs
drop out. Runs of the parts that are compared alternate, and medians are shown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import uproot
from load_test import TREE, branch_map, write_load_test

from features.kernel_pass import EventsFile, unmixed_rows
from features.kernels import build_features
from features.mixing_pass import PickedRows, gather_rows, write_group
from features.normalisation import GeneratedSample
from features.settings import FeatureSettings
from features.spark_job import keep_freed_memory, make_features
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
#: Sample and label by the start of a file's name.
CLASSES_OF = {"qcd": ("a", 0), "ttbar": ("b", 1), "wjets": ("c", 2)}
#: Events of each of the other files.
_IN_A_FILE = 480
SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def taking_turns(infos: list[FileInfo]) -> list[FileInfo]:
    """The files of the classes in turn, so that the first three hold all classes.

    Raises:
        SystemExit: A class has no file.
    """
    by_class = [
        [info for info in infos if info.sample == sample] for sample, _ in CLASSES_OF.values()
    ]
    if not all(by_class):
        sys.exit(
            f"every class needs a file: names begin with {', '.join(f'{name}_' for name in CLASSES_OF)}"
        )
    return [info for turn in zip_longest(*by_class) for info in turn if info]


def first(infos: list[FileInfo], num_events: int) -> list[FileInfo]:
    """The first files, with at least a number of events together and at least one of each class.

    Raises:
        SystemExit: There are fewer events.
    """
    totals = np.cumsum([info.entries for info in infos])
    if totals[-1] < num_events:
        sys.exit(f"the files have {totals[-1]} events, and --events asks for {num_events}")
    return infos[: max(int(np.searchsorted(totals, num_events)) + 1, len(CLASSES))]


def bare_read(infos: list[FileInfo], settings: IngestSettings) -> None:
    """uproot reading the needed branches, and nothing else: as it comes, with Python's zlib."""
    zlib = uproot.compression._DecompressZLIB
    fast, zlib.library = zlib.library, "zlib"
    branches = list(LAYOUTS[BranchLayout.DELPHES].branches(settings.branch_map).values())
    for info in infos:
        with uproot.open({info.path: settings.tree}) as tree:
            tree.arrays([name for name in branches if name in tree])
    zlib.library = fast


def one_process(infos: list[FileInfo], settings: IngestSettings, folder: Path) -> None:
    """ROOT to HLF and LLF Parquet without Spark, without events Parquet and without mixing."""
    keep_freed_memory()
    features = FeatureSettings()
    for index, info in enumerate(infos):
        batches = []
        for raw in read_events(info, settings, start=0, stop=info.entries):
            events = select_events(raw, info, settings).table
            batches.append(unmixed_rows(events, build_features(events, features)))
        rows = pa.Table.from_batches(batches)
        every = np.arange(rows.num_rows)
        write_group(
            0,
            index,
            gather_rows(
                [PickedRows(partial(pa.concat_tables, [rows]), every, every)], rows.num_rows
            ),
            CLASSES,
            folder,
        )


def both_stages(
    provider: SparkProvider, infos: list[FileInfo], settings: IngestSettings, folder: Path
) -> float:
    """Ingest and features under Spark; returns the bytes of an event in the features Parquet."""
    spark = provider.context()
    (folder / "events").mkdir(parents=True)
    (folder / "features" / "kernels").mkdir(parents=True)
    samples = [
        SampleSettings(name=name, label=label, files=["-"])
        for label, name in enumerate(["a", "b", "c"])
    ]
    result = spark.accumulator(0)
    created = ingest(
        spark,
        infos,
        samples,
        settings,
        folder / "events",
        done=result,
        num_tasks=provider.num_tasks,
    )
    chunks = [
        EventsFile(chunk.name, chunk.sample, chunk.digest, str(folder / "events" / chunk.name))
        for chunk in created.parts
    ]
    generated = {
        sample.name: GeneratedSample(label, None, 1, 1.0) for label, sample in enumerate(samples)
    }
    dataset = make_features(
        spark, chunks, generated, FeatureSettings(), CLASSES, folder / "features",
        kernels=folder / "features" / "kernels", event_counter=result, num_tasks=provider.num_tasks,
    ).dataset  # fmt: skip
    size = sum(path.stat().st_size for split in dataset.splits for path in dataset.files(split))
    return size / sum(dataset.num_rows(split) for split in dataset.splits)


def tree_cpu() -> float:
    """CPU seconds of this process and all that it started, dead ones included."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Bench(NamedTuple):
    """Files, how they are read, where results lie, and the two numbers of events."""

    infos: list[FileInfo]
    settings: IngestSettings
    folder: Path
    sizes: tuple[int, int]

    def cost(
        self,
        work: Callable[[list[FileInfo], Path], object],
        *,
        cpu: Callable[[], float] = time.process_time,
    ) -> tuple[float, float]:
        """Run once with each size: CPU microseconds of an event, and seconds of wall time of any job.

        `cpu` reads the clock: of this process alone where the work is done in it (Spark idles meanwhile).
        """
        results = []
        for size in self.sizes:
            files, folder = first(self.infos, size), self.folder / uuid.uuid4().hex
            (folder / "train").mkdir(parents=True)
            cpu_before, wall = cpu(), time.monotonic()
            work(files, folder)
            results.append(
                (sum(info.entries for info in files), cpu() - cpu_before, time.monotonic() - wall)
            )
            shutil.rmtree(folder)
        (few, small, briefly), (many, large, long) = results
        return 1e6 * (large - small) / (many - few), briefly - (long - briefly) / (many - few) * few


def infos_of(files: Mapping[str, Iterable[Path | str]], settings: IngestSettings) -> list[FileInfo]:
    samples = [
        SampleSettings(
            name=CLASSES_OF[name][0], label=CLASSES_OF[name][1], files=list(map(str, paths))
        )
        for name, paths in files.items()
    ]
    return inventory(expand(samples), settings).infos


def made_files(folder: Path, num_events: int) -> tuple[list[FileInfo], IngestSettings]:
    """Without files of one's own: turned copies of the bundled events, ZLIB level 1 as Delphes writes."""
    folder.mkdir()
    files = write_load_test(
        infos_of(
            {name: sorted(SAMPLES.glob(f"{name}_*")) for name in CLASSES_OF}, IngestSettings()
        ),
        IngestSettings(),
        -(-num_events // len(CLASSES)),
        folder,
        rng=np.random.default_rng(1),
        events_per_file=_IN_A_FILE,
    )
    settings = IngestSettings(tree=TREE, branch_map=branch_map())
    return infos_of(
        {name: files[sample] for name, (sample, _) in CLASSES_OF.items()}, settings
    ), settings


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
            files = {
                name: [
                    path
                    for path in sorted(arguments.files)
                    if Path(path).name.startswith(f"{name}_")
                ]
                for name in CLASSES_OF
            }
            infos = infos_of({name: paths for name, paths in files.items() if paths}, settings)
        else:
            infos, settings = made_files(Path(folder) / "sample", max(arguments.events))
        infos = taking_turns(infos)
        if len(first(infos, arguments.events[0])) == len(first(infos, arguments.events[1])):
            sys.exit(
                f"--events: {arguments.events[0]} and {arguments.events[1]} events need the same files; "
                "give other sizes"
            )
        provider = SparkProvider(SparkSettings(master="local[2]"))
        run(
            Bench(infos, settings, Path(folder), tuple(arguments.events)),
            provider,
            arguments.repeats,
        )
        provider.stop()


def run(bench: Bench, provider: SparkProvider, repeats: int) -> None:
    """Warm up, measure in turns, and print medians."""
    sizes: list[float] = []

    def on_spark(files: list[FileInfo], folder: Path) -> None:
        sizes.append(both_stages(provider, files, bench.settings, folder / "run"))

    # Starting the JVM, compiling and the first Python workers are no cost of an event.
    bare_read(bench.infos, bench.settings)
    bench.cost(lambda files, folder: one_process(files[:1], bench.settings, folder))
    bench.cost(lambda files, folder: on_spark(files[:9], folder), cpu=tree_cpu)
    read, kernels, spark, fixed = [], [], [], []
    for _ in range(repeats):
        read.append(bench.cost(lambda files, _: bare_read(files, bench.settings))[0])
        kernels.append(
            bench.cost(lambda files, folder: one_process(files, bench.settings, folder))[0]
        )
        per_event, seconds = bench.cost(on_spark, cpu=tree_cpu)
        spark.append(per_event)
        fixed.append(seconds)
        sys.stdout.write(
            f"  run: read {read[-1]:.0f}, one process {kernels[-1]:.0f}, spark {per_event:.0f} us/event\n"
        )
        sys.stdout.flush()
    base = statistics.median(read)
    lines = [
        f"bare uproot reading        {base:8.0f} us/event  {1e6 / base:8.0f} events/s per core"
    ]
    for name, costs, goal in (
        ("(a) one process", kernels, 2.3),
        ("(b) both stages on Spark", spark, 3.3),
    ):
        ratio = statistics.median(c / r for c, r in zip(costs, read, strict=True))
        cost = statistics.median(costs)
        lines.append(
            f"{name:<27}{cost:8.0f} us/event  {1e6 / cost:8.0f} events/s per core  "
            f"{ratio:5.2f} x reading (at most {goal})"
        )
    lines += [
        f"fixed cost of the two Spark jobs: {statistics.median(fixed):.1f} s (Spark already started)",
        f"features on disk: {sizes[-1] / 1000:.1f} kB an event (at most 16)",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
