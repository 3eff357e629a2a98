"""The Spark job for prediction: features of every selected event, without splits, balancing or mixing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, SparkContext

from features.kernel_pass import EventsFile, KernelOutput, read_unmixed, run_kernels
from features.memory import keep_freed_memory
from features.mixing_pass import PickedRows, gathered, group_file, rows_at_once, write_group
from features.normalisation import GeneratedSample, physics_factors
from features.schema import SPLITS
from features.settings import FeatureSettings

_KERNELS: Final = ".kernels"
_ROWS: Final = 2048
_SPLIT: Final = SPLITS.index("test")


class Unsplit(NamedTuple):
    """The features files and the kernel outputs."""

    files: list[Path]
    """Features Parquet files, in the format of a test split."""
    outputs: list[KernelOutput]
    """Kernel outputs, with the counters of each part."""


def make_unsplit(
    spark: SparkContext,
    parts: Sequence[EventsFile],
    samples: Mapping[str, GeneratedSample],
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> Unsplit:
    """Make features of all selected events of some parts, with the same kernels as `features.spark_job`.

    Args:
        spark: The running context.
        parts: The events parts.
        samples: The samples of the events, by name, for the physics weights.
        settings: Selection and physics; split, balance and layout are ignored.
        classes: Names of the classes, by label.
        out_dir: An existing folder that every task can reach.
        done: Counts events as tasks finish, for progress.
        num_tasks: Gives the number of Spark tasks for a number of pieces of work.
    """
    kernels = out_dir / _KERNELS
    for folder in (kernels, out_dir / SPLITS[_SPLIT]):
        folder.mkdir()
    factors = physics_factors(samples, settings.integrated_luminosity)

    def run(work: tuple[int, EventsFile]) -> tuple[KernelOutput, list[str]]:
        keep_freed_memory()
        place, part = work
        output = run_kernels(part, settings, kernels)
        done.add(output.counts["events"])
        rows = read_unmixed(output.path(out_dir), factor=factors[part.sample])
        return output, _write(place, rows, classes, out_dir)

    made = spark.parallelize(list(enumerate(parts)), num_tasks(len(parts))).map(run).collect()
    shutil.rmtree(kernels)
    return Unsplit([out_dir / name for _, names in made for name in names], [output for output, _ in made])


def _write(place: int, rows: pa.Table, classes: list[str], out_dir: Path) -> list[str]:
    """Write the rows of one part in their order, one row group per file; returns the files."""
    names = []
    at_once = min(_ROWS, rows_at_once(rows.nbytes, rows.num_rows))
    for first in range(0, rows.num_rows, at_once):
        # Parts hold a few thousand events, so the file numbers of two parts never collide.
        number = place * 10_000_000 + first
        some = np.arange(first, min(first + at_once, rows.num_rows))
        write_group(
            _SPLIT, number, gathered([PickedRows(lambda: rows, some, some - first)], len(some)), classes, out_dir
        )
        names.append(group_file(_SPLIT, number))
    return names
