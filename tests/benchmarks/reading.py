"""Benchmark: reading features, as ratios to bare petastorm and bare pyarrow (`make bench`).

Wall-clock time, warm page cache, one thread for torch as in a rank. Runs of what is compared
alternate; ratios are taken within a run, and medians are shown. Bare petastorm and bare pyarrow
read the same columns of the same files with the same settings and do nothing with them; the readers
deliver shuffled batches of 128 events.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import torch
from benchmark_data import hlf_dataset
from feature_datasets import write_dataset

from features.columns import MAX_PARTICLES
from features.dataset import FeatureDataset
from features.matrices import required_columns
from training.readers.batch import Batch
from training.readers.petastorm_compat import make_batch_reader
from training.readers.reader import Reader, open_reader
from training.readers.sharding import assign_rows, plan_epoch
from training.readers.streamed import transform_spec
from training.settings import ReaderKind

HLF = ("hlf",)
PARTICLES = ("particles", "num_particles")
#: Rows of the particle row groups: they take 61 kB each.
_PARTICLE_ROWS = 1024
_BATCH = 128


class Case(NamedTuple):
    name: str
    dataset: FeatureDataset
    inputs: tuple[str, ...]

    @property
    def rows(self) -> int:
        return self.dataset.num_rows("train")


def bare_pyarrow(case: Case) -> None:
    """Tables, and nothing done with them."""
    for file in case.dataset.files("train"):
        pq.ParquetFile(file).read(columns=required_columns([*case.inputs, "label", "weight"]))


def bare_petastorm(case: Case) -> None:
    """The arrays that petastorm makes, with the settings of our reader."""
    with make_batch_reader(
        [f"file://{file}" for file in case.dataset.files("train")],
        schema_fields=required_columns([*case.inputs, "label", "weight"]),
        transform_spec=transform_spec(
            [*case.inputs, "label", "weight"], case.dataset.max_particles
        ),
        reader_pool_type="thread",
        workers_count=1,
        results_queue_size=1,
        shuffle_row_groups=False,
        num_epochs=1,
    ) as reader:
        for _ in reader:
            pass


def through(reader: Reader, case: Case) -> Iterable[Batch]:
    rows = [group.rows for group in case.dataset.splits["train"]]
    plan = plan_epoch(rows, world_size=1, batch_size=_BATCH, seed=1, epoch=0)
    return reader.train_batches(assign_rows(plan, rank=0, epoch=0))


def consume(batches: Iterable[Batch]) -> None:
    for _ in batches:
        pass


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def reading(case: Case, repeats: int) -> dict[str, list[float]]:
    """Seconds of an epoch: bare and ours, in turns."""

    def opened(kind_name: ReaderKind) -> Reader:
        return open_reader(case.dataset, case.inputs, kind=kind_name, seed=1)

    petastorm, memory = opened("petastorm"), opened("arrow")
    ways: dict[str, Callable[[], None]] = {
        "bare petastorm": lambda: bare_petastorm(case),
        "petastorm": lambda: consume(through(petastorm, case)),
        "bare pyarrow": lambda: bare_pyarrow(case),
        "first epoch": lambda: consume(through(opened("arrow"), case)),
        "memory": lambda: consume(through(memory, case)),
    }
    for work in ways.values():
        work()
    actual: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            actual[name].append(seconds(work))
    return actual


def ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """Median over the runs of how many times as long as bare it takes."""
    return statistics.median(a / b for a, b in zip(ours, bare, strict=True))


def show(
    title: str, case: Case, actual: dict[str, list[float]], pairs: dict[str, tuple[str, str]]
) -> None:
    sys.stdout.write(f"{title}\n")
    for name, times in actual.items():
        line = f"  {name:<16}{case.rows / statistics.median(times):10.0f} events/s"
        if name in pairs:
            bare, goal = pairs[name]
            line += f"   {ratio(times, actual[bare]):5.2f} x the time of {bare}{goal}"
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--hlf", type=int, default=1_000_000, help="events with high-level features"
    )
    parser.add_argument("--particles", type=int, default=8192, help="events with particles")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    goals = {
        "petastorm": ("bare petastorm", " (at most 1.25)"),
        "first epoch": ("bare pyarrow", " (at most 2)"),
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        rows = {
            "train": [_PARTICLE_ROWS] * -(-arguments.particles // _PARTICLE_ROWS),
            "val": [1],
            "test": [1],
        }
        wide = write_dataset(folder / "wide", rows=rows, max_particles=MAX_PARTICLES)
        narrow = hlf_dataset(folder / "narrow", arguments.hlf)
        for case in (Case("801 x 19", wide, PARTICLES), Case("HLF", narrow, HLF)):
            actual = reading(case, arguments.repeats)
            pairs = {**goals, "memory": ("bare pyarrow", "")}
            show(f"Reading {case.name}, {case.rows} events", case, actual, pairs)


if __name__ == "__main__":
    main()
