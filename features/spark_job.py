"""The Spark job: runs the kernels over the events parts, then a shuffle that mixes all events into equal row groups.

The job has two passes. The first (`features.kernel_pass`) runs the kernels over the events parts, or reuses their
output of the last version. It sends only the keys of the events to the driver, which decides the layout. The second
(`features.mixing_pass`) sends the rows through a Spark shuffle of few large binary values and writes one file per row
group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pyspark import Accumulator, SparkContext

from features.columns import INPUT_COLUMNS, NUM_HLF, NUM_PARTICLE_FEATURES
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
    read_unmixed,
    run_kernels,
    take_over,
)
from features.memory import keep_freed_memory
from features.mixing import class_weights, group_size, kept_fractions, layout, refuse_empty_classes
from features.mixing_pass import (
    EVENTS_PER_TASK,
    GroupWritten,
    MixingPlan,
    TaskWritten,
    group_file,
    kept_by_balancing,
    scatter,
    write_groups,
)
from features.normalisation import GeneratedSample, physics_factors
from features.scaling import ColumnStatistics, scaler_json
from features.schema import SPLITS, TRAIN
from features.settings import Balance, FeatureSettings

#: Folder of the kernel outputs inside a version.
KERNELS: Final = "kernels"


class Earlier(NamedTuple):
    """Kernel outputs of the last version, from the same code and settings, by name of the events part."""

    folder: Path
    outputs: dict[str, KernelOutput]

    def of(self, part: EventsFile) -> KernelOutput | None:
        """The kernel output of a part if the part is unchanged, else None."""
        output = self.outputs.get(Path(part.name).with_suffix(".arrow").name)
        return output if output is not None and output.digest == part.digest else None


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
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
    earlier: Earlier | None = None,
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
        done: Counts events as kernel tasks finish, for progress.
        num_tasks: Gives the number of Spark tasks for a number of pieces of work.
        earlier: Kernel outputs to reuse for unchanged events parts.
        mixed: Given the number of events to mix, counts them as their row groups are written, for progress.
        load_test: Whether the events are copies of a few events; the dataset records it.

    Raises:
        FeatureError: No event passes the selection, or a split lacks a class or rows.
    """
    kernels = out_dir / KERNELS
    kernels.mkdir()
    factors = physics_factors(samples, settings.integrated_luminosity)
    made = _run_kernels(spark, parts, settings, kernels, earlier, factors, done=done, num_tasks=num_tasks)
    outputs = [output for output, _, _ in made]
    _refuse_empty(outputs)
    plan, weights = plan_layout([keys for _, keys, _ in made], settings, classes)
    for split in SPLITS:
        (out_dir / split).mkdir()
    packs = packs_of(outputs, num_tasks=num_tasks(len(outputs)))
    with mixed(plan.num_events()) if mixed else nullcontext(spark.accumulator(0)) as num_mixed:
        tasks = _mix(spark, packs, kernels, factors, plan, settings, classes, out_dir, done=num_mixed)
    written = [group for task in tasks for group in task.groups]
    for folder in (kernels, *(out_dir / split for split in SPLITS)):
        for unfinished in folder.glob(".*"):
            # Left by a task whose executor was lost; another task has done its work.
            unfinished.unlink(missing_ok=True)
    dataset = _describe(written, [keys for _, keys, _ in made], plan, weights, classes, out_dir)
    normalisation = {name: {**each._asdict(), "factor": factors[name]} for name, each in samples.items()}
    dataset = dataset._replace(load_test=load_test, definitions=kernel_items(settings), normalisation=normalisation)
    dataset.save(columns=_scaler(written))
    return FeaturesResult(dataset, outputs, sum(old for _, _, old in made), add(task.histograms for task in tasks))


def plan_layout(
    parts: Sequence[EventKeys], settings: FeatureSettings, classes: list[str]
) -> tuple[MixingPlan, list[float]]:
    """Decide which events to keep, the row groups of every split, and the class weights.

    Raises:
        FeatureError: A split lacks a class or has too few events, or the weights of a class add up to 0 or less.
    """
    keys = EventKeys(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    fractions = np.ones(len(classes))
    if settings.balance is Balance.DOWNSAMPLE:
        fractions = kept_fractions(keys.label[keys.split == TRAIN], len(classes))
    kept = kept_by_balancing(keys, fractions)
    refuse_empty_classes(keys.split[kept], keys.label[kept], classes)
    layouts = []
    weights = []
    for index, name in enumerate(SPLITS):
        chosen = kept & (keys.split == index)
        size = group_size(int(chosen.sum()), rows_per_group=settings.rows_per_group, feed_workers=settings.feed_workers)
        layouts.append(layout(keys.mixing[chosen], size=size))
        weights.append(class_weights(keys.label[chosen], keys.weight[chosen], classes, split=name))
    return MixingPlan(layouts, fractions), weights[0].tolist()


def _run_kernels(
    spark: SparkContext,
    parts: Sequence[EventsFile],
    settings: FeatureSettings,
    kernels: Path,
    earlier: Earlier | None,
    factors: Mapping[str, float],
    *,
    done: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> list[tuple[KernelOutput, EventKeys, bool]]:
    old_folder = str(earlier.folder) if earlier else ""
    folder = str(kernels)

    def run(work: tuple[EventsFile, KernelOutput | None]) -> tuple[KernelOutput, EventKeys, bool]:
        keep_freed_memory()
        part, before = work
        taken = before is not None and take_over(before, Path(old_folder), Path(folder))
        output = before if before is not None and taken else run_kernels(part, settings, Path(folder))
        done.add(output.counts["events"])
        return output, keys_of(Path(folder) / output.name, settings, factor=factors[part.sample]), taken

    work = [(part, earlier.of(part) if earlier else None) for part in parts]
    return list(spark.parallelize(work, num_tasks(len(work))).map(run).collect())


def packs_of(outputs: Sequence[KernelOutput], *, num_tasks: int) -> list[list[KernelOutput]]:
    """Group kernel outputs into packs, one per sending task; a task holds about EVENTS_PER_TASK events at most.

    Examples:
        >>> made = [KernelOutput(name, "a", "", {"selected": 6000}, {}) for name in ("x", "y", "z")]
        >>> [[output.name for output in pack] for pack in packs_of(made, num_tasks=1)]
        [['x'], ['y'], ['z']]
        >>> len(packs_of([each._replace(counts={"selected": 60}) for each in made], num_tasks=1))
        1
    """
    total = sum(output.counts["selected"] for output in outputs)
    most = min(EVENTS_PER_TASK, -(-total // num_tasks))
    packs: list[list[KernelOutput]] = []
    room = 0
    for output in outputs:
        if not packs or output.counts["selected"] > room:
            packs.append([])
            room = most
        packs[-1].append(output)
        room -= output.counts["selected"]
    return packs


def _mix(
    spark: SparkContext,
    packs: Sequence[list[KernelOutput]],
    kernels: Path,
    factors: Mapping[str, float],
    plan: MixingPlan,
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    done: Accumulator[int],
) -> list[TaskWritten]:
    """Shuffle the rows of all files into their row groups and write the row groups."""
    groups = plan.groups()
    source, folder = str(kernels), str(out_dir)

    def send(pack: list[KernelOutput]) -> Iterator[tuple[int, bytes]]:
        keep_freed_memory()
        for output in pack:
            path, factor = Path(source) / output.name, factors[output.sample]
            yield from scatter(read_unmixed(path, factor=factor), keys_of(path, settings), plan)

    def receive(blobs: Iterable[tuple[int, bytes]]) -> Iterator[TaskWritten]:
        keep_freed_memory()
        written = write_groups((blob for _, blob in blobs), groups, classes, Path(folder))
        done.add(sum(group.rows for group in written.groups))
        yield written

    sent = spark.parallelize(packs, len(packs)).flatMap(send)
    num_writers = int(plan.tasks()[-1]) + 1
    return list(sent.partitionBy(num_writers, int).mapPartitions(receive).collect())


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


def _describe(
    written: Sequence[GroupWritten],
    parts: Sequence[EventKeys],
    plan: MixingPlan,
    weights: list[float],
    classes: list[str],
    out_dir: Path,
) -> FeatureDataset:
    """The dataset's description: row groups, and events of each class by split."""
    splits: dict[str, list[RowGroup]] = {split: [] for split in SPLITS}
    for each in sorted(written, key=lambda group: (group.split, group.group)):
        splits[SPLITS[each.split]].append(RowGroup(group_file(each.split, each.group), each.rows))
    counts = {split: np.zeros(len(classes), dtype=np.int64) for split in SPLITS}
    for keys in parts:
        for index, split in enumerate(SPLITS):
            chosen = kept_by_balancing(keys, plan.fractions) & (keys.split == index)
            counts[split] += np.bincount(keys.label[chosen], minlength=len(classes))
    totals = {split: count.tolist() for split, count in counts.items()}
    return FeatureDataset(out_dir, classes, weights, splits, totals)


def _scaler(written: Sequence[GroupWritten]) -> dict[str, Any]:
    """Mean and standard deviation of all columns over the training split (no other split has statistics)."""
    hlf = ColumnStatistics.of(np.zeros((0, NUM_HLF)))
    particles = ColumnStatistics.of(np.zeros((0, NUM_PARTICLE_FEATURES)))
    for each in sorted(written, key=lambda group: (group.split, group.group)):
        hlf, particles = hlf.merge(each.hlf), particles.merge(each.particles)
    found = {"hlf": hlf, "particles": particles}
    return {name: scaler_json(statistics, INPUT_COLUMNS[name]) for name, statistics in found.items()}
