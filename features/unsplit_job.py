"""The Spark job for events that are only predicted: their features, not split and not mixed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pyspark import Accumulator, SparkContext

from features.kernel_pass import EventKeys, EventsFile, KernelOutput, event_keys, run_kernels
from features.mixing import RowGroupPlan
from features.mixing_pass import KernelFile, rows_in_memory, write_groups
from features.normalisation import GeneratedSample, physics_factors
from features.schema import SPLITS
from features.settings import FeatureSettings
from features.spark_tasks import keep_freed_memory

#: Highest number of events in a file.
_MAX_ROWS: Final = 2048
#: Folder of the kernel outputs of events that are only predicted.
_KERNELS: Final = ".kernels"
#: Number of the test split.
_TEST: Final = SPLITS.index("test")
_FILE_NUMBERS_PER_PART: Final = 10_000_000


class Unsplit(NamedTuple):
    """The features files and the kernel outputs."""

    files: list[Path]
    """Features Parquet files, in the format of a test split."""
    outputs: list[KernelOutput]
    """Kernel outputs, with the counters of each part."""


def make_unsplit(
    spark: SparkContext,
    events_parts: Sequence[EventsFile],
    samples: Mapping[str, GeneratedSample],
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    event_counter: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> Unsplit:
    """Make features of all selected events of some parts, in their order, for predictions.

    For each part a task

     1. runs the kernels, which select events and compute their features;
     2. divides the selected events into row groups that fit in memory;
     3. writes each row group to a file of the test split.

    The arguments are those of `make_features`; split, balance and layout of the settings are
    ignored.
    """
    kernels = out_dir / _KERNELS
    kernels.mkdir()
    (out_dir / SPLITS[_TEST]).mkdir()
    factors = physics_factors(samples, settings.integrated_luminosity)

    def make_part(numbered_part: tuple[int, EventsFile]) -> tuple[KernelOutput, list[str]]:
        """Return the kernel output of one part, and the names of its features files."""
        keep_freed_memory()
        part_number, events_part = numbered_part
        output = run_kernels(events_part, settings, kernels)
        event_counter.add(output.counts["events"])
        path = output.path(out_dir)
        kernel_file = KernelFile(str(path), 0, factors[events_part.sample])
        max_rows = min(_MAX_ROWS, rows_in_memory(output.memory, output.counts["selected"]))
        names = []
        for group in _row_groups(part_number, event_keys(path, settings), max_rows):
            (written,), _ = write_groups([group], [kernel_file], classes, out_dir)
            names.append(written.group.file)
        return output, names

    numbered_parts = list(enumerate(events_parts))
    work = spark.parallelize(numbered_parts, num_tasks(len(numbered_parts)))
    results = work.map(make_part).collect()
    shutil.rmtree(kernels)
    files: list[Path] = []
    for _, names in results:
        files += [out_dir / name for name in names]
    return Unsplit(files, [output for output, _ in results])


def _row_groups(part_number: int, keys: EventKeys, max_rows: int) -> Iterator[RowGroupPlan]:
    """Yield row groups of the test split with the selected events of a part, in their order.

    Each has at most `max_rows` events. The number of a group's file follows from the number of its
    part and of its first event.
    """
    for first in range(0, len(keys.row), max_rows):
        events = slice(first, first + max_rows)
        # Parts hold a few thousand events, so the file numbers of two parts never collide.
        group_number = part_number * _FILE_NUMBERS_PER_PART + first
        rows = keys.row[events].astype(np.int64)
        yield RowGroupPlan(_TEST, group_number, rows, keys.num_particles[events])
