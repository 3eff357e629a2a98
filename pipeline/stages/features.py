"""Events Parquet to features Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from features.columns import hlf_names
from features.functions import plugin_features
from features.settings import FeatureSettings
from hep_core.input_errors import shortened_list
from hep_core.plugin_functions import code_module
from hep_core.storage import is_remote, read_footers
from ingestion.expressions import sample_labels
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.tally import sums_by_sample
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.errors import MissingInputError
from pipeline.machine.doctor import Need
from pipeline.machine.spark_jobs import counted
from pipeline.reporting.cutflow import uncertain_mixtures
from pipeline.runs import own_folders
from pipeline.runs.counters import IngestCounters, KernelCounters
from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.own_folders import claimed
from pipeline.runs.plugin_code import feature_code
from pipeline.runs.store import StageStore
from pipeline.stages.base import Check, Context, Result, Stage
from pipeline.stages.cutflow_files import write_cutflow
from pipeline.stages.input_files import files_read

if TYPE_CHECKING:
    from pyspark import Accumulator

    from features.kernel_pass import EventsFile, KernelOutput
    from features.normalisation import GeneratedSample
    from features.spark_job import FeaturesResult


class Features(Stage):
    """Selects events and computes model inputs; see `features.spark_job`."""

    name: ClassVar[str] = "features"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ingest": ("events/*", "counters/samples", "counters/weights", "counters/generated")
    }
    volatile: ClassVar[frozenset[str]] = frozenset(
        {
            "counters/kernel_outputs_taken_over",
            "counters/kernel_outputs/*/lies_in",
            "counters/kernel_outputs/*/size",
            "counters/kernel_outputs/*/file_digest",
            "dataset.json/lies_in",
        }
    )
    uses_storage: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def entry_points(self, config: Config) -> tuple[str, ...]:
        """Return this stage, and the modules of plugins that compute features of their own."""
        return (*super().entry_points(config), *_plugin_modules())

    def config_items(self, config: Config) -> dict[str, Any]:
        """Return the section `features`, the classes, and what normalises the samples."""
        return {
            **flat_items(config.features, "features"),
            "classes": config.classes,
            **config.normalisation(),
        }

    def run(self, context: Context) -> Result:
        """Select events, compute their features, and write training, validation and test splits.

        A first pass of Spark runs the kernels, the functions that select events and compute
        features. A second one mixes the rows of all samples. Cutflow and histograms are written
        beside the dataset.
        """
        from features.distributions import HISTOGRAMS, save_histograms

        _check_labels(context)
        for sentence in uncertain_mixtures(context.config.model_dump(mode="json")):
            context.say(f"note: {sentence}")
        with _kernel_folder(context) as kernels:
            result = _make_features(context, kernels)
            counters = _counters(result)
            _print_notes(context, result, counters)
            write_cutflow(context, counters)
            save_histograms(result.histograms, context.out_dir / HISTOGRAMS)
            return _result(result, counters, _num_ingested(context))


def _make_features(context: Context, kernels: Path) -> FeaturesResult:
    """Run both passes on Spark, each with a progress bar.

    The first pass computes the features of each file of events, the second one mixes their rows.

    Args:
        context: The context of the stage.
        kernels: The folder for the results of the first pass.
    """
    from features.spark_job import make_features

    config, ingested = context.config, context.upstream["ingest"]
    ingested_names = {sample["name"] for sample in ingested.config.samples}
    # A sample that was added to the config after ingest has no events yet.
    samples = [sample for sample in config.samples if sample.name in ingested_names]
    spark = context.start_spark()
    with ExitStack() as progress:

        def count_on_bar(label: str, num_events: int) -> AbstractContextManager[Accumulator[int]]:
            """Return a counter that is shown on a new bar; the bar before it ends."""
            progress.close()
            bar = progress.enter_context(context.bar(label, "events"))
            return counted(spark, bar, num_events)

        return make_features(
            spark,
            _events_files(context),
            generated_samples(samples, ingested.manifest.counters),
            config.features,
            config.classes,
            context.out_dir,
            kernels=kernels,
            parquet_dir=context.data_dir,
            event_counter=progress.enter_context(count_on_bar("features", _num_ingested(context))),
            num_tasks=context.spark.num_tasks,
            reading=_reading(context),
            plugin_code=feature_code(),
            count_mixed=partial(count_on_bar, "mixing"),
            earlier=_reusable_outputs(context),
        )


def _num_ingested(context: Context) -> int:
    """Return the number of ingested events of all samples."""
    samples = context.upstream["ingest"].counters(IngestCounters).samples
    return sum(steps["events"] for steps in samples.values())


def _plugin_modules() -> set[str]:
    return {code_module(feature.function) for feature in plugin_features().values()}


@contextmanager
def _kernel_folder(context: Context) -> Iterator[Path]:
    """Yield a new folder for kernel outputs (computed features before they are mixed).

    Before, kernel outputs that nothing uses are removed from the run folder. After a failure, the
    new ones are removed too. On object storage, nothing is created or removed here: the folder
    there belongs to the version.
    """
    folder = context.data_dir.parent / KERNELS / context.out_dir.name
    if is_remote(folder):
        yield folder
        return
    store = StageStore(context.config.run_dir, Features.name)
    store.remove_unused_kernel_outputs()
    try:
        own_folders.make(folder)
        with claimed([folder]):
            yield folder
    except BaseException:
        store.remove_unused_kernel_outputs()
        raise


def _check_labels(context: Context) -> None:
    """Refuse ingested events whose sample has another label in the config now, or is gone there.

    The label is the index of the class. A sample that is gone has no cross-section, so that all
    samples of its class would count by their numbers of events.

    Raises:
        MissingInputError: There is such a sample, or a label for which there is no class.
    """
    config = context.config
    current_labels = {sample.name: (sample.label, sample.label_by) for sample in config.samples}
    for sample in context.upstream["ingest"].config.samples:
        name, label, label_by = sample["name"], sample["label"], sample.get("label_by", {})
        # With `label_by`, a branch decides the label of each event; None stands for no class.
        part_labels = sample_labels(name, label, label_by).values()
        highest_label = max(part_label for part_label in part_labels if part_label is not None)
        is_same = current_labels.get(name) == (label, label_by)
        if not is_same or highest_label >= len(config.classes):
            difference = "another label" if name in current_labels else "no such sample"
            raise MissingInputError(
                f"the events of sample '{name}' were ingested with the label {label_by or label}; "
                f"the config has {difference} now. Run `python -m pipeline ingest` first, or "
                f"`python -m pipeline run` for all, with the same options."
            )


def _reading(context: Context) -> dict[str, Any]:
    """Return the settings of ingest that the dataset states, as JSON content.

    The command `predict` reads further files by them. If all samples name the same tree and
    branches, these are among them. Settings about speed, waiting, bad files, weights, copies and
    pass-through columns are left out. Beside them stands whether the files have particles.
    """
    from ingestion.file_info import HAS_PARTICLES, have_particles

    config = context.upstream["ingest"].config
    settings = IngestSettings.model_validate(config.ingest)
    layouts = [(sample["tree"], sample["branch_map"]) for sample in config.samples]
    if all(layout == layouts[0] for layout in layouts):
        settings = settings.for_sample(*layouts[0])
    unused = {*IngestSettings.SPEED_ONLY, "pass_through", "weights", "on_duplicate"}
    reading = settings.model_dump(mode="json", exclude=unused)
    has_particles = have_particles(files_read(context.upstream["ingest"]))
    if has_particles is not None:
        reading[HAS_PARTICLES] = has_particles
    return reading


def generated_samples(
    samples: Iterable[SampleSettings], ingested: Mapping[str, Any]
) -> dict[str, GeneratedSample]:
    """Return what ingest read of each sample and class, by name, with its normalisation.

    Args:
        samples: The samples of the config.
        ingested: The counters of ingest.
    """
    from features.normalisation import GeneratedSample

    generated: dict[str, GeneratedSample] = {}
    for sample in samples:
        generated |= GeneratedSample.from_counters(
            sample.name,
            sample_labels(sample.name, sample.label, sample.label_by),
            ingested,
            cross_section_pb=sample.cross_section_pb,
            sum_of_weights=sample.sum_of_weights,
        )
    return generated


def _events_files(context: Context) -> list[EventsFile]:
    """Return the Parquet files of ingested events, with sample, digest and location.

    A part (range of entries of a ROOT file) without any event has no file.
    """
    from features.kernel_pass import EventsFile

    ingested = context.upstream["ingest"]
    files = {file.path: file for file in ingested.files}
    events_files = []
    for part in ingested.counters(IngestCounters).parts:
        if part.name:
            file = files[f"events/{part.name}"]
            location = str(file.location(ingested.folder))
            events_files.append(EventsFile(part.name, part.sample, file.digest, location))
    return events_files


def _reusable_outputs(context: Context) -> list[KernelOutput]:
    """Return the kernel outputs of the version in use that this run may take over.

    Kernel outputs are computed features before they are mixed. They are taken over only if code,
    names of features and all settings that concern them are the same.
    """
    from features.kernel_pass import KernelOutput, kernel_items

    current = context.current
    if current is None or "dataset.json" in context.missing:
        return []
    if not current.ran_same_code("features.kernel_pass", *_plugin_modules()):
        return []
    dataset = json.loads((current.folder / "dataset.json").read_text(encoding="utf-8"))
    earlier_settings = FeatureSettings.model_validate(current.config.features)
    if dataset["hlf"] != list(hlf_names()):
        return []
    if kernel_items(earlier_settings) != kernel_items(context.config.features):
        return []
    outputs = current.counters(KernelCounters).kernel_outputs
    return [KernelOutput(**output.model_dump()) for output in outputs]


def _counters(result: FeaturesResult) -> dict[str, Any]:
    """Return the counters of this stage for the manifest, as JSON content.

    `samples` and `weights` are sums by sample and step of the cutflow. The others describe the
    dataset and the kernel outputs that it was made from.
    """
    sums, dataset = sums_by_sample(result.outputs), result.dataset
    num_selected = sum(steps["selected"] for steps in sums["samples"].values())
    num_rows = sum(dataset.num_rows(split) for split in dataset.splits)
    return {
        **sums,
        "splits": dataset.counts,
        "dropped_by_balancing": num_selected - num_rows,
        "row_groups": {split: len(groups) for split, groups in dataset.splits.items()},
        "normalisation": dataset.normalisation,
        "kernel_outputs_taken_over": result.num_reused,
        "kernel_outputs": [output._asdict() for output in result.outputs],
    }


def _print_notes(context: Context, result: FeaturesResult, counters: dict[str, Any]) -> None:
    """Print notes on damaged kernel outputs, and on samples whose leptons lack tracks."""
    from features.spark_job import track_hint

    if result.damaged:
        names = shortened_list(result.damaged)
        context.say(f"note: kernel outputs were damaged and are computed again: {names}")
    for sample, steps in counters["samples"].items():
        hint = track_hint(sample, steps)
        if hint:
            context.say(f"note:{hint}")


def _result(result: FeaturesResult, counters: dict[str, Any], num_ingested: int) -> Result:
    """Return the result of the stage, with its checks and the line for the terminal.

    The checks compare numbers of events: ingested and read, selected and rejected, planned and
    written. The last one demands one row group in each Parquet file.

    Args:
        result: The dataset that was made.
        counters: The counters of this stage.
        num_ingested: The number of events that ingest kept.
    """
    from features.kernels import OUTCOMES
    from features.schema import SPLITS

    dataset, samples = result.dataset, counters["samples"].values()
    num_selected = sum(steps["selected"] for steps in samples)
    num_events = sum(steps["events"] for steps in samples)
    # Each event has exactly one outcome: selected, or the reason of its rejection.
    num_outcomes = sum(steps[outcome] for steps in samples for outcome in OUTCOMES)
    num_planned = sum(dataset.num_rows(split) for split in SPLITS)
    # The footer at the end of a Parquet file states its numbers of rows and of row groups.
    footers = read_footers([path for split in SPLITS for path in dataset.files(split)])
    num_rows = sum(footer.num_rows for footer in footers)
    splits = ", ".join(f"{split} {dataset.num_rows(split)}" for split in SPLITS)
    summary = f"{num_selected} events selected ({splits})"
    num_dropped = counters["dropped_by_balancing"]
    if num_dropped:
        summary += f"; balance: downsample dropped {num_dropped}"
    if result.num_reused:
        summary += f"; kernels of {result.num_reused} of {len(result.outputs)} parts reused"
    return Result(
        summary=summary,
        counters=counters,
        checks=[
            Check(
                "events read = events ingested",
                num_events == num_ingested,
                f"{num_events} = {num_ingested}",
            ),
            Check(
                "events = selected + rejections",
                num_outcomes == num_events,
                f"{num_events} = {num_outcomes}",
            ),
            Check(
                "rows in the Parquet = rows planned",
                num_rows == num_planned,
                f"{num_rows} = {num_planned}",
            ),
            Check(
                "one row group per file",
                all(footer.num_row_groups == 1 for footer in footers),
                "all footers",
            ),
        ],
        digests=result.digests,
    )
