"""The Spark job: runs the kernels over the events parts, then mixes all events into row groups.

The job has two passes. The first (`features.kernel_pass`) runs the kernels over the events parts,
or reuses their output of earlier versions. It sends only the keys of the events to the driver,
which decides the layout (`features.mixing`). The second (`features.mixing_pass`) gathers the rows
of each row group from the kernels' files.

`features.unsplit_job` is the job for events that are only predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark import Accumulator, SparkContext

from features.columns import INPUT_COLUMNS
from features.dataset import FeatureDataset, RowGroup
from features.distributions import Histograms, add_histograms
from features.errors import FeatureError
from features.kernel_pass import (
    LACKS_OWN_TRACK,
    EventKeys,
    EventsFile,
    KernelOutput,
    event_keys,
    kernel_items,
    metadata_settings,
    run_kernels,
)
from features.mixing import RowGroupPlan, plan_mixing
from features.mixing_pass import KernelFile, WrittenGroup, rows_in_memory, write_groups
from features.normalisation import GeneratedSample, physics_factors
from features.scaling import ColumnStatistics, scaler_json
from features.schema import SPLITS
from features.settings import FeatureSettings
from features.spark_tasks import keep_freed_memory, task_folder
from hep_core.atomic_files import local_copy
from hep_core.integrity import file_digest
from hep_core.storage import file_sizes, is_remote, make_folder
from ingestion.tally import sums_by_sample

#: Highest number of events that a task mixes, however small they are: more tasks use more cores.
_EVENTS_PER_TASK: Final = 8192


class FeaturesResult(NamedTuple):
    """The dataset, and how it was made."""

    dataset: FeatureDataset
    outputs: list[KernelOutput]
    """Kernel output of each part."""
    num_reused: int
    """Number of kernel outputs of earlier versions that were reused."""
    damaged: list[str]
    """Names of the parts whose kernel outputs of earlier versions were damaged: the kernels ran
    again."""
    histograms: Histograms
    """Histograms of the features of all events."""
    digests: dict[str, str]
    """Digest of the content of each file with a row group; empty for a local file."""


class _KernelResult(NamedTuple):
    """The kernel output of one events part, and the keys of its events."""

    output: KernelOutput
    keys: EventKeys
    is_reused: bool
    """Whether the output is that of an earlier version."""


def make_features(
    spark: SparkContext,
    events_parts: Sequence[EventsFile],
    samples: Mapping[str, GeneratedSample],
    settings: FeatureSettings,
    classes: list[str],
    out_dir: Path,
    *,
    kernels: Path,
    parquet_dir: Path | None = None,
    event_counter: Accumulator[int],
    num_tasks: Callable[[int], int],
    reading: Mapping[str, object] | None = None,
    plugin_code: Mapping[str, str] | None = None,
    earlier: Iterable[KernelOutput] = (),
    count_mixed: Callable[[int], AbstractContextManager[Accumulator[int]]] | None = None,
) -> FeaturesResult:
    """Make the features dataset.

    Tasks run the kernels over the events parts. The driver then plans the row groups from the keys
    of all selected events, and further tasks write them. `dataset.json` and `scaler.json` come
    last.

    Args:
        spark: Where the tasks run.
        events_parts: Files of the events Parquet.
        samples: Numbers for the physics weights, by sample.
        settings: Selection, physics and layout.
        classes: Names of the classes.
        out_dir: Folder of the dataset; it exists, and every task can reach it.
        kernels: Such a folder for kernel outputs, beside those of earlier versions.
        parquet_dir: Folder of the Parquet if that is object storage.
        event_counter: Counts events whose kernels have run, for progress.
        num_tasks: Gives the number of Spark tasks for a number of pieces of work.
        reading: The settings by which the events were read, for `predict`.
        plugin_code: Digests of the plugins that compute features; see `FeatureDataset`.
        earlier: Kernel outputs of earlier versions of the same code and settings, which are reused
            for unchanged events parts.
        count_mixed: Given the number of events to mix, opens a counter of mixed events.

    Raises:
        FeatureError: No event passes the selection, or a split lacks a class or rows.
    """
    parquet_dir = parquet_dir or out_dir
    reading = dict(reading or {})
    factors = physics_factors(samples, settings.integrated_luminosity)
    results, damaged = _run_kernels(
        spark,
        events_parts,
        settings,
        kernels,
        earlier,
        factors,
        event_counter=event_counter,
        num_tasks=num_tasks,
    )
    outputs = [result.output for result in results]
    _require_selected_events(outputs)

    # The rows of the kernels show how many events fit in memory.
    num_bytes = sum(output.memory for output in outputs)
    num_selected = sum(output.counts["selected"] for output in outputs)
    # A row group must fit in the memory of a task, whatever the settings say.
    max_rows = rows_in_memory(num_bytes, num_selected)
    rows_per_group = min(settings.rows_per_group, max_rows)
    fitting_settings = settings.model_copy(update={"rows_per_group": rows_per_group})
    plan = plan_mixing([result.keys for result in results], fitting_settings, classes)
    for split in SPLITS:
        make_folder(parquet_dir / split)
    files = _kernel_files(results, kernels, factors)
    stated = metadata_settings(settings, reading)

    # Without `count_mixed`, a counter that nobody reads.
    counting: AbstractContextManager[Accumulator[int]] = nullcontext(spark.accumulator(0))
    if count_mixed is not None:
        num_mixed = sum(len(group.rows) for group in plan.groups)
        counting = count_mixed(num_mixed)
    with counting as mixed_counter:

        def write(groups: list[RowGroupPlan]) -> tuple[list[WrittenGroup], Histograms]:
            """Write the row groups of one task, in that task."""
            keep_freed_memory()
            written, histograms = write_groups(
                groups, files, classes, parquet_dir, task_folder(parquet_dir), stated
            )
            mixed_counter.add(sum(group.group.rows for group in written))
            return written, histograms

        tasks = plan.tasks(min(max_rows, _EVENTS_PER_TASK))
        task_results = spark.parallelize(tasks, len(tasks)).map(write).collect()

    # Each task returned its row groups and one sum of their histograms.
    written = []
    for task_groups, _ in task_results:
        written += task_groups
    histograms = add_histograms(task_histograms for _, task_histograms in task_results)
    if not is_remote(parquet_dir):
        _remove_unfinished([kernels, *(parquet_dir / split for split in SPLITS)])
    normalisation = {}
    for name, sample in samples.items():
        normalisation[name] = {**sample._asdict(), "factor": factors[name]}
    dataset = FeatureDataset(
        out_dir,
        classes,
        plan.class_weights,
        _groups_by_split(written),
        plan.counts,
        kernel_items(settings),
        normalisation,
        str(parquet_dir) if is_remote(parquet_dir) else "",
        reading,
        dict(plugin_code or {}),
    )
    dataset.save(columns=_scalers(written))
    num_reused = sum(result.is_reused for result in results)
    digests = {group.group.file: group.digest for group in written}
    return FeaturesResult(dataset, outputs, num_reused, damaged, histograms, digests)


def _kernel_files(
    results: Sequence[_KernelResult], kernels: Path, factors: Mapping[str, float]
) -> list[KernelFile]:
    """The files of the kernels, each with the number of its first row.

    Rows are numbered through the files of all parts, in the order of the results.
    """
    files = []
    first_row = 0
    for output, keys, _ in results:
        path = str(output.path(kernels.parent))
        files.append(KernelFile(path, first_row, factors[output.sample]))
        first_row += len(keys.row)
    return files


def _remove_unfinished(folders: Iterable[Path]) -> None:
    """Remove files of tasks whose executor was lost; other tasks have done their work."""
    for folder in folders:
        for unfinished in folder.glob(".*"):
            unfinished.unlink(missing_ok=True)


def _groups_by_split(written: Sequence[WrittenGroup]) -> dict[str, list[RowGroup]]:
    """The row groups of each split, by its name."""
    groups: dict[str, list[RowGroup]] = {name: [] for name in SPLITS}
    for group in written:
        split_name = SPLITS[group.split]
        groups[split_name].append(group.group)
    return groups


def _scalers(written: Sequence[WrittenGroup]) -> dict[str, Any]:
    """Scaling of the inputs from the statistics of the training split; no other split has any."""
    hlf = reduce(ColumnStatistics.merge, [group.hlf for group in written])
    particles = reduce(ColumnStatistics.merge, [group.particles for group in written])
    return {
        "hlf": scaler_json(hlf, INPUT_COLUMNS["hlf"]),
        "particles": scaler_json(particles, INPUT_COLUMNS["particles"]),
    }


def _run_kernels(
    spark: SparkContext,
    events_parts: Sequence[EventsFile],
    settings: FeatureSettings,
    kernels: Path,
    earlier: Iterable[KernelOutput],
    factors: Mapping[str, float],
    *,
    event_counter: Accumulator[int],
    num_tasks: Callable[[int], int],
) -> tuple[list[_KernelResult], list[str]]:
    """Run the kernels over the parts without a valid output of an earlier version.

    An earlier output is valid if the name and the digest of its events part are the same, its file
    has the right size, and, which a task checks, the right digest.

    Returns:
        The result of each part, and the names of the parts whose earlier outputs were damaged.
    """

    def run(work: tuple[EventsFile, KernelOutput | None]) -> _KernelResult:
        """Reuse or make the output of one part, and read its keys, in a task."""
        keep_freed_memory()
        events_part, output = work
        is_reused = False
        if output is not None:
            is_reused = file_digest(local_rows(output)) == output.file_digest
        if output is None or not is_reused:
            output = run_kernels(events_part, settings, kernels)
        event_counter.add(output.counts["events"])
        keys = event_keys(local_rows(output), settings, factor=factors[events_part.sample])
        return _KernelResult(output, keys, is_reused)

    def local_rows(output: KernelOutput) -> Path:
        """The file of an output, or on object storage its local copy."""
        return local_copy(output.path(kernels.parent), task_folder(kernels))

    # One list of all files is faster than a request for each, on object storage.
    sizes = file_sizes(kernels.parent)
    reusable = {}
    for output in earlier:
        if output.is_among(sizes):
            reusable[output.name, output.digest] = output
    work = []
    for events_part in events_parts:
        earlier_output = reusable.get((events_part.name, events_part.digest))
        work.append((events_part, earlier_output))
    tasks = spark.parallelize(work, num_tasks(len(work)))
    results = list(tasks.map(run).collect())
    damaged = []
    for (events_part, earlier_output), result in zip(work, results, strict=True):
        # An earlier output that its task did not reuse had another digest than recorded.
        if earlier_output is not None and not result.is_reused:
            damaged.append(events_part.name)
    return results, damaged


def track_hint(sample: str, counter: Mapping[str, int], *, may_change_radius: bool = True) -> str:
    """Sentences, if most leptons of a sample have no track of their own; else an empty text.

    Args:
        sample: Name of the sample.
        counter: Numbers of events of the sample by outcome.
        may_change_radius: Whether another `features.own_track_dr` may help; trained models hold it
            fixed.
    """
    num_without, num_events = counter[LACKS_OWN_TRACK], counter["events"]
    if 2 * num_without <= num_events:
        return ""
    remedy = "Check that leptons and tracks have the same origin of eta and phi."
    if may_change_radius:
        remedy = (
            "Raise features.own_track_dr, or check that leptons and tracks have the same origin of "
            "eta and phi."
        )
    return (
        f" In {num_without} of {num_events} events of '{sample}' no track is within "
        "features.own_track_dr of the lepton: its own track then counts in its isolation, and "
        f"nearly no lepton is isolated. {remedy}"
    )


def _require_selected_events(outputs: Sequence[KernelOutput]) -> None:
    """Refuse a sample of which no event is selected; the error has its cutflow."""
    for sample, counter in sums_by_sample(outputs)["samples"].items():
        if counter["selected"]:
            continue
        lines = [f"  {step:<30}{count:>10}" for step, count in counter.items()]
        cutflow = "\n".join(lines)
        raise FeatureError(
            f"sample '{sample}': no event is left after the selection. Its cutflow:\n{cutflow}\n"
            "Loosen features.min_lepton_pt or features.max_lepton_isolation, or check the files."
            f"{track_hint(sample, counter)}"
        )
