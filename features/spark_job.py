"""The Spark job: runs the kernels over the events parts, then mixes all events into equal row groups.

The job has two passes. The first (`features.kernel_pass`) runs the kernels over the events parts, or reuses their
output of earlier versions. It sends only the keys of the events to the driver, which decides the layout
(`features.mixing`). The second (`features.mixing_pass`) gathers the rows of each row group from the kernels' files.

A second job makes the features of events that are only predicted: no splits, no balancing, no mixing.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, SparkContext, SparkFiles

from features.columns import INPUT_COLUMNS
from features.dataset import FeatureDataset
from features.distributions import Histograms, add_histograms
from features.errors import FeatureError
from features.kernel_pass import (
    LACKS_OWN_TRACK,
    EventKeys,
    EventsFile,
    KernelOutput,
    kernel_items,
    keys_of,
    metadata_settings,
    run_kernels,
)
from features.mixing import RowGroupPlan, plan_mixing
from features.mixing_pass import GroupWritten, KernelFile, rows_at_once, write_groups
from features.normalisation import GeneratedSample, physics_factors
from features.scaling import ColumnStatistics, scaler_json
from features.schema import SPLITS
from features.settings import FeatureSettings
from hep_core.atomic_files import local_copy
from hep_core.integrity import file_digest
from hep_core.plugins import load_from_environment
from hep_core.storage import file_sizes, is_remote, make_folder
from ingestion.tally import sums_by_sample

#: Highest number of events that a task mixes, however small they are: more tasks use more cores.
_EVENTS_PER_TASK: Final = 8192
#: Highest number of events in a file that is not mixed.
_UNMIXED_ROWS: Final = 2048
_KERNELS: Final = ".kernels"
_TEST: Final = SPLITS.index("test")
#: From glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


class FeaturesResult(NamedTuple):
    """The dataset, the kernel output of each part, the number of reused outputs, the histograms, and digests."""

    dataset: FeatureDataset
    outputs: list[KernelOutput]
    num_reused: int
    damaged: list[str]
    """Names of the parts whose kernel outputs of earlier versions were damaged: the kernels ran again."""
    histograms: Histograms
    digests: dict[str, str]
    """Digest of the content of each file with a row group."""


class Unsplit(NamedTuple):
    """The features files and the kernel outputs."""

    files: list[Path]
    """Features Parquet files, in the format of a test split."""
    outputs: list[KernelOutput]
    """Kernel outputs, with the counters of each part."""


def make_features(
    spark: SparkContext,
    parts: Sequence[EventsFile],
    samples: Mapping[str, GeneratedSample],
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    kernels: Path,
    data: Path | None = None,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
    reading: Mapping[str, object] | None = None,
    earlier: Iterable[KernelOutput] = (),
    mixed: Callable[[int], AbstractContextManager[Accumulator[int]]] | None = None,
) -> FeaturesResult:
    """Make the features dataset in `out_dir` (an existing folder that every task can reach).

    Its Parquet goes to `data` if that is object storage, kernel outputs to `kernels`, another such folder, beside those
    of `earlier` versions of the same code and settings, which are reused for unchanged events parts. `done` and, given
    the number of events to mix, `mixed` count events for progress. `reading` are the settings by which the events were
    read, for `predict`. `num_tasks` gives the number of Spark tasks for a number of pieces of work.

    Raises:
        FeatureError: No event passes the selection, or a split lacks a class or rows.
    """
    factors = physics_factors(samples, settings.integrated_luminosity)
    made, damaged = _run_kernels(
        spark, parts, settings, kernels, earlier, factors, done=done, num_tasks=num_tasks
    )
    outputs = [output for output, _, _ in made]
    _refuse_empty(outputs)
    at_once = rows_at_once(
        sum(each.size for each in outputs), sum(each.counts["selected"] for each in outputs)
    )
    bounded = settings.model_copy(update={"rows_per_group": min(settings.rows_per_group, at_once)})
    plan = plan_mixing([keys for _, keys, _ in made], bounded, classes)
    data = data or out_dir
    for split in SPLITS:
        make_folder(data / split)
    first_events = np.cumsum([0, *(len(keys.split) for _, keys, _ in made)]).tolist()
    files = [
        KernelFile(str(output.path(kernels.parent)), first, factors[output.sample])
        for output, first in zip(outputs, first_events, strict=False)
    ]
    stated = metadata_settings(settings, reading or {})
    with (
        mixed(sum(map(sum, plan.counts.values())))
        if mixed
        else nullcontext(spark.accumulator(0)) as num_mixed
    ):

        def write(groups: list[RowGroupPlan]) -> tuple[list[GroupWritten], Histograms]:
            keep_freed_memory()
            written, histograms = write_groups(groups, files, classes, data, _scratch(data), stated)
            num_mixed.add(sum(each.group.rows for each in written))
            return written, histograms

        planned = plan.tasks(min(at_once, _EVENTS_PER_TASK))
        tasks = spark.parallelize(planned, len(planned)).map(write).collect()
    written = [group for groups, _ in tasks for group in groups]
    for folder in () if is_remote(data) else (kernels, *(data / split for split in SPLITS)):
        for unfinished in folder.glob(".*"):
            # Left by a task whose executor was lost; another task has done its work.
            unfinished.unlink(missing_ok=True)
    dataset = FeatureDataset(
        out_dir,
        classes,
        plan.class_weights,
        {
            name: [each.group for each in written if each.split == split]
            for split, name in enumerate(SPLITS)
        },
        plan.counts,
        kernel_items(settings),
        {name: {**each._asdict(), "factor": factors[name]} for name, each in samples.items()},
        str(data) if is_remote(data) else "",
        dict(reading or {}),
    )
    # No split but that of training has statistics.
    found = {
        "hlf": [each.hlf for each in written],
        "particles": [each.particles for each in written],
    }
    merged = {name: reduce(ColumnStatistics.merge, each) for name, each in found.items()}
    dataset.save(
        columns={name: scaler_json(each, INPUT_COLUMNS[name]) for name, each in merged.items()}
    )
    digests = {each.group.file: each.digest for each in written}
    num_old = sum(old for _, _, old in made)
    return FeaturesResult(
        dataset,
        outputs,
        num_old,
        damaged,
        add_histograms(histograms for _, histograms in tasks),
        digests,
    )


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
    """Make features of all selected events of some parts, in their order.

    The arguments are those of `make_features`; split, balance and layout of the settings are ignored.
    """
    kernels = out_dir / _KERNELS
    for folder in (kernels, out_dir / SPLITS[_TEST]):
        folder.mkdir()
    factors = physics_factors(samples, settings.integrated_luminosity)

    def run(work: tuple[int, EventsFile]) -> tuple[KernelOutput, list[str]]:
        keep_freed_memory()
        place, part = work
        output = run_kernels(part, settings, kernels)
        done.add(output.counts["events"])
        file = KernelFile(str(output.path(out_dir)), 0, factors[part.sample])
        events = np.arange(output.counts["selected"])
        at_once = min(_UNMIXED_ROWS, rows_at_once(output.size, len(events)))
        names = []
        for first in range(0, len(events), at_once):
            # Parts hold a few thousand events, so the file numbers of two parts never collide.
            group = RowGroupPlan(_TEST, place * 10_000_000 + first, events[first : first + at_once])
            (written,), _ = write_groups([group], [file], classes, out_dir)
            names.append(written.group.file)
        return output, names

    made = spark.parallelize(list(enumerate(parts)), num_tasks(len(parts))).map(run).collect()
    shutil.rmtree(kernels)
    return Unsplit(
        [out_dir / name for _, names in made for name in names], [output for output, _ in made]
    )


def _run_kernels(
    spark: SparkContext,
    parts: Sequence[EventsFile],
    settings: FeatureSettings,
    kernels: Path,
    earlier: Iterable[KernelOutput],
    factors: Mapping[str, float],
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> tuple[list[tuple[KernelOutput, EventKeys, bool]], list[str]]:
    """The kernel output of each part, its keys and whether it was reused; names of parts whose outputs were damaged."""

    def run(work: tuple[EventsFile, KernelOutput | None]) -> tuple[KernelOutput, EventKeys, bool]:
        keep_freed_memory()
        part, before = work
        if before is not None and file_digest(local_rows(before)) != before.file_digest:
            before = None
        output = before or run_kernels(part, settings, kernels)
        done.add(output.counts["events"])
        return (
            output,
            keys_of(local_rows(output), settings, factor=factors[part.sample]),
            before is not None,
        )

    def local_rows(output: KernelOutput) -> Path:
        return local_copy(output.path(kernels.parent), _scratch(kernels))

    sizes = file_sizes(kernels.parent)
    known = {(output.name, output.digest): output for output in earlier if output.is_there(sizes)}
    work = [(part, known.get((part.name, part.digest))) for part in parts]
    made = list(spark.parallelize(work, num_tasks(len(work))).map(run).collect())
    pairs = zip(work, made, strict=True)
    return made, [
        part.name for (part, before), (*_, is_reused) in pairs if before and not is_reused
    ]


def _scratch(folder: Path) -> Path:
    """In a task, where its host keeps copies of files of a folder on object storage; Spark removes them at its end."""
    return Path(SparkFiles.getRootDirectory() if is_remote(folder) else "")


def keep_freed_memory() -> None:
    """Let this process keep freed memory, of NumPy and Arrow alike, for its next arrays; without glibc nothing changes.

    A row group takes a few hundred MB of short-lived arrays. Page faults of mapping each anew cost a tenth of the time
    from ROOT to features (measured: 42 faults per event, 100 to 150 us of system time; with this 0.4 and 40 us).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        pa.set_memory_pool(pa.system_memory_pool())


def track_hint(sample: str, counter: Mapping[str, int]) -> str:
    """A sentence, if most leptons of a sample have no track of their own; else nothing."""
    without, of = counter[LACKS_OWN_TRACK], counter["events"]
    if 2 * without <= of:
        return ""
    return (
        f" In {without} of {of} events of '{sample}' no track is within features.own_track_dr of the lepton: its own "
        f"track then counts in its isolation, and nearly no lepton is isolated. Raise features.own_track_dr, or check "
        f"that leptons and tracks have the same origin of eta and phi."
    )


def _refuse_empty(outputs: Sequence[KernelOutput]) -> None:
    for sample, counter in sums_by_sample(outputs)["samples"].items():
        if not counter["selected"]:
            cutflow = "\n".join(f"  {key:<30}{value:>10}" for key, value in counter.items())
            raise FeatureError(
                f"sample '{sample}': no event is left after the selection. Its cutflow:\n{cutflow}\n"
                f"Loosen features.min_lepton_pt or features.max_lepton_isolation, or check the files."
                f"{track_hint(sample, counter)}"
            )


# In Spark's workers, which begin with this module.
load_from_environment()
