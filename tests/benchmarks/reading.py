"""Benchmark: reading features, as ratios to bare petastorm, bare pyarrow and tensors in memory (`make bench`).

Wall-clock time, warm page cache, one thread for torch as in a rank. Runs of what is compared alternate; ratios are
taken within a run, and medians are shown. Bare petastorm and bare pyarrow read the same columns of the same files with
the same settings and do nothing with them; the readers deliver shuffled batches of 128 events.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from features.columns import MAX_PARTICLES, NUM_CORE, PARTICLE_KINDS, hlf_names
from features.dataset import FeatureDataset, RowGroup
from features.matrices import columns_of, list_columns, of_columns
from features.mixing_pass import write_features
from training.readers.batch import Batch
from training.readers.petastorm_compat import make_batch_reader
from training.readers.reader import Reader, open_reader
from training.readers.sharding import assignment_of, plan_epoch
from training.readers.streamed import transform_spec
from training.settings import ReaderKind

HLF = ("hlf",)
PARTICLES = ("particles", "num_particles")
#: Rows of the particle row groups: they take 61 kB each.
_PARTICLE_ROWS = 1024
_HLF_ROWS = 2048
_BATCH = 128


class Case(NamedTuple):
    """A dataset with the columns that are read from it."""

    name: str
    dataset: FeatureDataset
    inputs: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Events of the training split."""
        return self.dataset.num_rows("train")


def make_dataset(folder: Path, num_groups: int, rows: int, *, particles: bool) -> FeatureDataset:
    """Random events; particles compress about as well as real ones."""
    rng = np.random.default_rng(1)
    groups = []
    for split in ("train", "val"):
        (folder / split).mkdir(parents=True)
    for number in range(num_groups + 1):
        lengths = rng.integers(500, MAX_PARTICLES + 1, rows, dtype=np.int32)
        columns = {
            **{name: pa.array(rng.normal(size=rows).astype(np.float32)) for name in hlf_names()},
            "num_particles": pa.array(lengths),
            "label": pa.array(rng.integers(0, 3, rows)),
            "weight": pa.array(rng.uniform(0.5, 1.5, rows).astype(np.float32)),
        }
        # The writer looks for the columns of particles too.
        columns |= made_particles(rng, lengths if particles else np.zeros(rows, np.int32))
        split = "train" if number < num_groups else "val"
        groups.append(RowGroup(f"{split}/part-{number:05d}.parquet", rows))
        # The writer looks for these columns.
        columns["file_uuid"] = columns["sample"] = pa.array([""] * rows)
        write_features(pa.table(columns), folder / groups[-1].file)
    splits = {"train": groups[:-1], "val": groups[-1:]}
    return FeatureDataset(folder, ["QCD", "ttbar", "W+jets"], [2.0, 1.0, 0.5], splits, {})


def made_particles(rng: np.random.Generator, lengths: np.ndarray) -> dict[str, pa.Array]:
    """Columns of particles: a kind, a charge, and 9 numbers."""
    core = rng.integers(0, 1 << 9, (lengths.sum(), NUM_CORE)).astype(np.float32) * np.float32(0.37)
    core[:, 0] %= len(PARTICLE_KINDS)
    core[:, 1] = np.sign(core[:, 1] - 90)
    return list_columns(np.concatenate([[0], np.cumsum(lengths)]), of_columns(core.T))


def bare_pyarrow(case: Case) -> None:
    """Tables, and nothing done with them."""
    for file in case.dataset.files("train"):
        pq.ParquetFile(file).read(columns=columns_of([*case.inputs, "label", "weight"]))


def bare_petastorm(case: Case) -> None:
    """The arrays that petastorm makes, with the settings of our reader."""
    with make_batch_reader(
        [f"file://{file}" for file in case.dataset.files("train")],
        schema_fields=columns_of([*case.inputs, "label", "weight"]),
        transform_spec=transform_spec([*case.inputs, "label", "weight"], case.dataset.most_particles),
        reader_pool_type="thread",
        workers_count=1,
        results_queue_size=1,
        shuffle_row_groups=False,
        num_epochs=1,
    ) as reader:
        for _ in reader:
            pass


def through(reader: Reader, case: Case, *, epoch: int = 0) -> Iterable[Batch]:
    """One epoch of one rank."""
    rows = [group.rows for group in case.dataset.splits["train"]]
    plan = plan_epoch(rows, world_size=1, batch_size=_BATCH, seed=1, epoch=epoch)
    return reader.train_batches(assignment_of(plan, rank=0, epoch=epoch))


def consume(batches: Iterable[Batch]) -> None:
    """Read every batch without using it."""
    for _ in batches:
        pass


def seconds(work: Callable[[], None]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def reading(case: Case, repeats: int) -> dict[str, list[float]]:
    """Seconds of an epoch: bare and ours, in turns."""

    def opened(kind: ReaderKind) -> Reader:
        return open_reader(case.dataset, case.inputs, kind=kind, seed=1)

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
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            found[name].append(seconds(work))
    return found


class Bare:
    """A plain torch loop: CERN's network, Adam, weighted cross-entropy."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        widths = [len(hlf_names()), 50, 20, 10, 3]
        layers = [layer for k in range(4) for layer in (nn.Linear(widths[k], widths[k + 1]), nn.ReLU())]
        self.network = nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.Adam(self.network.parameters())

    def step(self, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> None:
        """One update."""
        self.optimizer.zero_grad()
        losses = weights * nn.functional.cross_entropy(self.network(inputs), labels, reduction="none")
        losses.mean().backward()
        self.optimizer.step()

    def over_tensors(self, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> None:
        """An epoch, shuffled."""
        for rows in torch.randperm(len(labels)).split(_BATCH):
            self.step(inputs[rows], labels[rows], weights[rows])

    def over_batches(self, batches: Iterable[Batch]) -> None:
        """An epoch from a reader."""
        for batch in batches:
            self.step(batch.inputs[0], batch.labels, batch.weights)


def training(case: Case, repeats: int) -> dict[str, list[float]]:
    """Seconds of an epoch of the same loop, over tensors and over each reader's batches, in turns."""
    readers = {
        "memory": open_reader(case.dataset, HLF, kind="arrow", seed=1),
        "petastorm": open_reader(case.dataset, HLF, seed=1),
    }
    batches = list(through(readers["memory"], case))
    tensors = [torch.cat(parts) for parts in zip(*((b.inputs[0], b.labels, b.weights) for b in batches), strict=True)]
    loop = Bare()
    found: dict[str, list[float]] = {name: [] for name in ("tensors", *readers)}
    for epoch in range(repeats):
        found["tensors"].append(seconds(lambda: loop.over_tensors(*tensors)))
        for name, reader in readers.items():
            shuffled = through(reader, case, epoch=epoch)
            found[name].append(seconds(lambda: loop.over_batches(shuffled)))  # noqa: B023
    return found


def ratio(ours: Sequence[float], bare: Sequence[float]) -> float:
    """Median over the runs of how many times as long as bare it takes."""
    return statistics.median(a / b for a, b in zip(ours, bare, strict=True))


def show(title: str, case: Case, found: dict[str, list[float]], pairs: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Print rates and ratios; returns the ratios."""
    sys.stdout.write(f"{title}\n")
    ratios = {}
    for name, times in found.items():
        line = f"  {name:<16}{case.rows / statistics.median(times):10.0f} events/s"
        if name in pairs:
            bare, goal = pairs[name]
            ratios[name] = ratio(times, found[bare])
            line += f"   {ratios[name]:5.2f} x the time of {bare}{goal}"
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return ratios


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hlf", type=int, default=1_000_000, help="events with high-level features")
    parser.add_argument("--particles", type=int, default=8192, help="events with particles")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    goals = {"petastorm": ("bare petastorm", " (at most 1.25)"), "first epoch": ("bare pyarrow", " (at most 2)")}
    numbers = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        wide = make_dataset(folder / "wide", -(-given.particles // _PARTICLE_ROWS), _PARTICLE_ROWS, particles=True)
        narrow = make_dataset(folder / "narrow", -(-given.hlf // _HLF_ROWS), _HLF_ROWS, particles=False)
        for case in (Case("801 x 19", wide, PARTICLES), Case("HLF", narrow, HLF)):
            found = reading(case, given.repeats)
            pairs = {**goals, "memory": ("bare pyarrow", "")}
            numbers[case.name] = show(f"Reading {case.name}, {case.rows} events", case, found, pairs) | found
        case = Case("training", narrow, HLF)
        found = training(case, given.repeats)
        pairs = {"memory": ("tensors", " (at most 1.15)"), "petastorm": ("tensors", "")}
        numbers["training"] = show(f"Training HLF, batch {_BATCH}, {case.rows} events", case, found, pairs) | found
    if given.json:
        given.json.write_text(json.dumps(numbers, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
