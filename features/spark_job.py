"""The Spark job: runs the kernels over the events parts, then mixes all events into equal row groups.

The job has two passes. The first (`features.kernel_pass`) runs the kernels over the events parts, or reuses their
output of earlier versions. It sends only the keys of the events to the driver, which decides the layout
(`features.mixing`). The second (`features.mixing_pass`) gathers the rows of each row group from the kernels' files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pyspark import Accumulator, SparkContext

from features.columns import INPUT_COLUMNS, MAX_PARTICLES, NUM_CORE, NUM_HLF, NUM_PARTICLE_FEATURES
from features.dataset import FeatureDataset, RowGroup
from features.distributions import Histograms, add
from features.errors import EmptySelectionError
from features.kernel_pass import (
    LACKS_OWN_TRACK,
    EventKeys,
    EventsFile,
    KernelOutput,
    kernel_items,
    keys_of,
    run_kernels,
)
from features.memory import keep_freed_memory
from features.mixing import MixingPlan, RowGroupPlan, plan_mixing
from features.mixing_pass import GroupWritten, KernelFile, TaskWritten, group_file, write_groups
from features.normalisation import GeneratedSample, physics_factors
from features.scaling import ColumnStatistics, scaler_json
from features.schema import SPLITS
from features.settings import FeatureSettings

#: Memory of the rows that a task gathers.
_GATHERED_BYTES: Final = 256 << 20
#: Number of events that have that size at most.
EVENTS_PER_TASK: Final = _GATHERED_BYTES // (MAX_PARTICLES * NUM_CORE * 4)


class FeaturesResult(NamedTuple):
    """The dataset, the kernel output of each part, the number of reused outputs, and the histograms."""

    dataset: FeatureDataset
    outputs: list[KernelOutput]
    num_taken_over: int
    histograms: Histograms


def make_features(
    spark: SparkContext,
    parts: Sequence[EventsFile],
    samples: Mapping[str, GeneratedSample],
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    kernels: Path,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
    earlier: Iterable[KernelOutput] = (),
    mixed: Callable[[int], AbstractContextManager[Accumulator[int]]] | None = None,
    load_test: bool = False,
) -> FeaturesResult:
    """Make the features dataset in `out_dir` (an existing folder that every task can reach).

    Args:
        spark: The running context.
        parts: The events parts.
        samples: The samples of the events, by name, for the physics weights.
        settings: Selection, physics, layout.
        classes: Names of the classes, by label.
        out_dir: Where the dataset goes.
        kernels: Where the kernel outputs go, another such folder, beside those of the versions in `earlier`.
        done: Counts events as kernel tasks finish, for progress.
        num_tasks: Gives the number of Spark tasks for a number of pieces of work.
        earlier: Kernel outputs of the same code and settings, to reuse for unchanged events parts.
        mixed: Given the number of events to mix, counts them as their row groups are written, for progress.
        load_test: Whether the events are copies of a few events; the dataset records it.

    Raises:
        FeatureError: No event passes the selection, or a split lacks a class or rows.
    """
    factors = physics_factors(samples, settings.integrated_luminosity)
    made = _run_kernels(spark, parts, settings, kernels, earlier, factors, done=done, num_tasks=num_tasks)
    outputs = [output for output, _, _ in made]
    _refuse_empty(outputs)
    plan = plan_mixing([keys for _, keys, _ in made], settings, classes)
    for split in SPLITS:
        (out_dir / split).mkdir()
    first_events = np.cumsum([0, *(len(keys.split) for _, keys, _ in made)]).tolist()
    files = [
        KernelFile(str(output.path(kernels.parent)), first, factors[output.sample])
        for output, first in zip(outputs, first_events, strict=False)
    ]
    with mixed(plan.num_events()) if mixed else nullcontext(spark.accumulator(0)) as num_mixed:
        tasks = _mix(spark, plan, files, classes, out_dir, done=num_mixed)
    written = [group for task in tasks for group in task.groups]
    for folder in (kernels, *(out_dir / split for split in SPLITS)):
        for unfinished in folder.glob(".*"):
            # Left by a task whose executor was lost; another task has done its work.
            unfinished.unlink(missing_ok=True)
    dataset = _describe(written, plan, classes, out_dir)
    normalisation = {name: {**each._asdict(), "factor": factors[name]} for name, each in samples.items()}
    dataset = dataset._replace(load_test=load_test, definitions=kernel_items(settings), normalisation=normalisation)
    dataset.save(columns=_scaler(written))
    return FeaturesResult(dataset, outputs, sum(old for _, _, old in made), add(task.histograms for task in tasks))


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
) -> list[tuple[KernelOutput, EventKeys, bool]]:
    folder = str(kernels)

    def run(work: tuple[EventsFile, KernelOutput | None]) -> tuple[KernelOutput, EventKeys, bool]:
        keep_freed_memory()
        part, before = work
        output = before or run_kernels(part, settings, Path(folder))
        done.add(output.counts["events"])
        keys = keys_of(output.path(Path(folder).parent), settings, factor=factors[part.sample])
        return output, keys, before is not None

    known = {(output.name, output.digest): output for output in earlier if output.is_there(kernels.parent)}
    work = [(part, known.get((part.name, part.digest))) for part in parts]
    return list(spark.parallelize(work, num_tasks(len(work))).map(run).collect())


def _mix(
    spark: SparkContext,
    plan: MixingPlan,
    files: Sequence[KernelFile],
    classes: list[str],
    out_dir: Path,
    *,
    done: Accumulator[int],
) -> list[TaskWritten]:
    """Write the row groups."""
    folder = str(out_dir)

    def write(groups: list[RowGroupPlan]) -> TaskWritten:
        keep_freed_memory()
        written = write_groups(groups, files, classes, Path(folder))
        done.add(sum(group.rows for group in written.groups))
        return written

    tasks = plan.tasks(EVENTS_PER_TASK)
    return list(spark.parallelize(tasks, len(tasks)).map(write).collect())


def sum_by_sample(outputs: Iterable[KernelOutput]) -> dict[str, dict[str, int]]:
    """Sums of the counters over the parts of each sample."""
    totals: dict[str, dict[str, int]] = {}
    for output in outputs:
        total = totals.setdefault(output.sample, dict.fromkeys(output.counts, 0))
        for key, value in output.counts.items():
            total[key] += value
    return totals


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


def _refuse_empty(outputs: Iterable[KernelOutput]) -> None:
    for sample, counter in sum_by_sample(outputs).items():
        if not counter["selected"]:
            cutflow = "\n".join(f"  {key:<30}{value:>10}" for key, value in counter.items())
            raise EmptySelectionError(
                f"sample '{sample}': no event is left after the selection. Its cutflow:\n{cutflow}\n"
                f"Loosen features.min_lepton_pt or features.max_lepton_isolation, or check the files."
                f"{track_hint(sample, counter)}"
            )


def _describe(written: Sequence[GroupWritten], plan: MixingPlan, classes: list[str], out_dir: Path) -> FeatureDataset:
    """The dataset's description: row groups, and events of each class by split."""
    splits: dict[str, list[RowGroup]] = {split: [] for split in SPLITS}
    for each in sorted(written, key=lambda group: (group.split, group.group)):
        splits[SPLITS[each.split]].append(RowGroup(group_file(each.split, each.group), each.rows))
    return FeatureDataset(out_dir, classes, plan.class_weights, splits, plan.counts)


def _scaler(written: Sequence[GroupWritten]) -> dict[str, Any]:
    """Mean and standard deviation of all columns over the training split (no other split has statistics)."""
    hlf = ColumnStatistics.of(np.zeros((0, NUM_HLF)))
    particles = ColumnStatistics.of(np.zeros((0, NUM_PARTICLE_FEATURES)))
    for each in sorted(written, key=lambda group: (group.split, group.group)):
        hlf, particles = hlf.merge(each.hlf), particles.merge(each.particles)
    found = {"hlf": hlf, "particles": particles}
    return {name: scaler_json(statistics, INPUT_COLUMNS[name]) for name, statistics in found.items()}
