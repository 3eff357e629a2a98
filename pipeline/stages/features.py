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
from hep_core.input_errors import shortened_list
from hep_core.plugin_functions import code_module
from hep_core.storage import is_remote, read_footers
from ingestion.expressions import sample_labels
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.tally import NO_CLASS, WRAPPED_AZIMUTHS, sums_by_sample
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.errors import MissingInputError
from pipeline.machine.doctor import Need
from pipeline.machine.spark_session import counted
from pipeline.reporting.cutflow import applied_cuts, as_json, cutflow, uncertain_mixtures
from pipeline.runs import own_folders
from pipeline.runs.counters import IngestCounters, KernelCounters
from pipeline.runs.kernel_cache import KERNELS
from pipeline.runs.own_folders import claimed
from pipeline.runs.store import StageStore
from pipeline.stages.base import Check, Context, Result, Stage

if TYPE_CHECKING:
    from pyspark import Accumulator

    from features.kernel_pass import EventsFile, KernelOutput
    from features.normalisation import GeneratedSample
    from features.spark_job import FeaturesResult


class Features(Stage):
    """Selects events and computes model inputs; see `features.spark_job`."""

    name: ClassVar[str] = "features"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ingest": (
            "events/*",
            *(f"counters/{name}" for name in ("samples", "weights", "generated")),
        )
    }
    volatile: ClassVar[frozenset[str]] = frozenset(
        {
            "counters/kernel_outputs_taken_over",
            "counters/kernel_outputs/*/lies_in",
            "counters/kernel_outputs/*/file_digest",
            "dataset.json/lies_in",
        }
    )
    uses_storage: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = (Need.SPARK,)

    def entry_points(self, config: Config) -> tuple[str, ...]:
        """Also the features of plugins."""
        return (*super().entry_points(config), *_modules_of_plugins())

    def config_items(self, config: Config) -> dict[str, Any]:
        """Selection, physics, split, balance, layout, the classes, and what normalises the samples."""
        return {
            **flat_items(config.features, "features"),
            "classes": config.classes,
            **config.normalisation(),
        }

    def run(self, context: Context) -> Result:
        """Run the kernels, then mix the rows; write cutflow and histograms beside the dataset."""
        from features.distributions import HISTOGRAMS, save_histograms
        from features.spark_job import make_features, track_hint

        _refuse_other_labels(context)
        config, ingested = context.config, context.upstream["ingest"]
        ingest_counters = ingested.counters(IngestCounters)
        for words in uncertain_mixtures(config.model_dump(mode="json")):
            context.say(f"note: {words}")
        total = sum(sample["events"] for sample in ingest_counters.samples.values())
        # Samples of which events are there: they are in the config too.
        there = {each["name"] for each in ingested.config.samples}
        spark = context.start_spark()
        with _folder_of_kernels(context) as kernels:
            with ExitStack() as progress:

                def shown(label: str, num_events: int) -> AbstractContextManager[Accumulator[int]]:
                    """A counter on a bar, which replaces the previous bar."""
                    progress.close()
                    return counted(
                        spark, progress.enter_context(context.bar(label, "events")), num_events
                    )

                result = make_features(
                    spark,
                    _events_files(context),
                    generated_samples(
                        [each for each in config.samples if each.name in there],
                        ingested.manifest.counters,
                    ),
                    config.features,
                    config.classes,
                    context.out_dir,
                    kernels=kernels,
                    parquet_dir=context.data_dir,
                    event_counter=progress.enter_context(shown("features", total)),
                    num_tasks=context.spark.num_tasks,
                    reading=_reading(context),
                    count_mixed=partial(shown, "mixing"),
                    earlier=_earlier(context),
                )
            counters = _counters(result)
            if result.damaged:
                context.say(
                    f"note: kernel outputs were damaged and are computed again: {shortened_list(result.damaged)}"
                )
            for sample, counter in counters["samples"].items():
                if words := track_hint(sample, counter):
                    context.say(f"note:{words}")
            _write_cutflow(context, counters)
            save_histograms(result.histograms, context.out_dir / HISTOGRAMS)
            return _result(result, counters, total)


def _modules_of_plugins() -> set[str]:
    return {code_module(feature.function) for feature in plugin_features().values()}


@contextmanager
def _folder_of_kernels(context: Context) -> Iterator[Path]:
    """A new folder for the outputs of the kernels; removes those that nothing uses, also its own after a failure.

    On object storage, it belongs to the version folder there.
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


def _refuse_other_labels(context: Context) -> None:
    """Refuse events whose sample had another label when they were ingested, or has left the config.

    Without its cross-section, all samples of its class would count by their numbers of events.
    """
    config = context.config
    now = {sample.name: (sample.label, sample.label_by) for sample in config.samples}
    for each in context.upstream["ingest"].config.samples:
        name, label, label_by = each["name"], each["label"], each.get("label_by", {})
        labels = [
            known for known in sample_labels(name, label, label_by).values() if known is not None
        ]
        if max(labels) >= len(config.classes) or now.get(name) != (label, label_by):
            has = "another label" if name in now else "no such sample"
            raise MissingInputError(
                f"the events of sample '{name}' were ingested with the label {label_by or label}; the config has {has} "
                f"now. Run `python -m pipeline ingest` first, or `python -m pipeline run` for all, with the same "
                f"options."
            )


def _reading(context: Context) -> dict[str, Any]:
    """What `predict` reads further files by: the settings of ingest, with what all samples state alike."""
    config = context.upstream["ingest"].config
    settings = IngestSettings.model_validate(config.ingest)
    first, *others = ((each["tree"], each["branch_map"]) for each in config.samples)
    if all(each == first for each in others):
        settings = settings.for_sample(*first)
    kept = (
        IngestSettings.model_fields.keys()
        - IngestSettings.SPEED_ONLY
        - {"pass_through", "weights", "on_duplicate"}
    )
    return settings.model_dump(mode="json", include=kept)


def generated_samples(
    samples: Iterable[SampleSettings], ingested: Mapping[str, Any]
) -> dict[str, GeneratedSample]:
    """What ingest read of each sample and class, with its normalisation; `ingested` are the counters of ingest."""
    from features.normalisation import GeneratedSample

    keys = ("cross_section_pb", "sum_of_weights")
    found: dict[str, GeneratedSample] = {}
    for each in samples:
        parts = sample_labels(each.name, each.label, each.label_by)
        found |= GeneratedSample.from_counters(
            each.name, parts, ingested, **{key: getattr(each, key) for key in keys}
        )
    return found


def _events_files(context: Context) -> list[EventsFile]:
    from features.kernel_pass import EventsFile

    ingested = context.upstream["ingest"]
    files = {each.path: each for each in ingested.files}
    return [
        EventsFile(part.name, part.sample, file.digest, str(file.location(ingested.folder)))
        for part in ingested.counters(IngestCounters).parts
        if part.name and (file := files[f"events/{part.name}"])
    ]


def _earlier(context: Context) -> list[KernelOutput]:
    """Kernel outputs of the version in use, if the same code made them with the same selection and physics."""
    from features.kernel_pass import KernelOutput, kernel_items
    from features.settings import FeatureSettings

    current = context.current
    if current is None or not current.ran_same_code("features.kernel_pass", *_modules_of_plugins()):
        return []
    if "dataset.json" in context.missing:
        return []
    if json.loads((current.folder / "dataset.json").read_text(encoding="utf-8"))["hlf"] != [
        *hlf_names()
    ]:
        return []
    before = FeatureSettings.model_validate(current.config.features)
    if kernel_items(before) != kernel_items(context.config.features):
        return []
    outputs = current.counters(KernelCounters).kernel_outputs
    return [KernelOutput(**output.model_dump()) for output in outputs]


def _counters(result: FeaturesResult) -> dict[str, Any]:
    sums = sums_by_sample(result.outputs)
    selected = sum(sample["selected"] for sample in sums["samples"].values())
    dataset = result.dataset
    return {
        **sums,
        "splits": dataset.counts,
        "dropped_by_balancing": selected - sum(dataset.num_rows(split) for split in dataset.splits),
        "row_groups": {split: len(groups) for split, groups in dataset.splits.items()},
        "normalisation": dataset.normalisation,
        "kernel_outputs_taken_over": result.num_reused,
        "kernel_outputs": [output._asdict() for output in result.outputs],
    }


def _write_cutflow(context: Context, counters: dict[str, Any]) -> None:
    """`cutflow.txt` by class, `cutflow.json` by sample and by class; both with counters beside the cuts."""
    from features.kernel_pass import LACKS_OWN_TRACK
    from pipeline.terminal.tables import cutflow_table

    ingested = context.upstream["ingest"]
    ingest_counters = ingested.manifest.counters
    config = {
        "samples": ingested.config.samples,
        "ingest": ingested.config.ingest,
        "classes": context.config.classes,
        "features": applied_cuts(
            context.config.features.model_dump(mode="json"), ingested.manifest.inputs
        ),
    }
    by_class = cutflow(ingest_counters, counters, config, by_class=True)
    by_sample = cutflow(ingest_counters, counters, config)
    parts = (
        sample_labels(each["name"], each["label"], each.get("label_by", {}))
        for each in ingested.config.samples
    )
    names = [name for each in parts for name in each]
    beside = {
        key: found
        for key, of in (
            (LACKS_OWN_TRACK, counters["samples"]),
            (WRAPPED_AZIMUTHS, ingest_counters["samples"]),
            (NO_CLASS, ingest_counters["samples"]),
        )
        if (found := {name: of[name][key] for name in names if key in of.get(name, {})})
    }
    lines = [
        f"{key.replace('_', ' ')}: {', '.join(f'{sample} {count}' for sample, count in each.items())}\n"
        for key, each in beside.items()
    ]
    if stated := [
        name for name, each in counters["normalisation"].items() if each["stated_sum"] is not None
    ]:
        lines.insert(
            0,
            f"Efficiencies of weights are relative to all generated events of: {', '.join(stated)}\n",
        )
        context.say(lines[0].rstrip())
    table = cutflow_table(by_class)
    (context.out_dir / "cutflow.txt").write_text("".join([str(table), *lines]), encoding="utf-8")
    content = {
        "classes": as_json(by_class),
        "samples": as_json(by_sample),
        "counters": beside,
        "integrated_luminosity": context.config.features.integrated_luminosity,
        "normalisation": counters["normalisation"],
    }
    (context.out_dir / "cutflow.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    context.console.print(table)


def _result(result: FeaturesResult, counters: dict[str, Any], total: int) -> Result:
    """Checks and the line for the terminal."""
    from features.kernels import OUTCOMES
    from features.schema import SPLITS

    dataset, samples = result.dataset, counters["samples"].values()
    selected = sum(sample["selected"] for sample in samples)
    kept = sum(dataset.num_rows(split) for split in SPLITS)
    found = read_footers([path for split in SPLITS for path in dataset.files(split)])
    rows = sum(footer.num_rows for footer in found)
    accounted = sum(sample[outcome] for sample in samples for outcome in OUTCOMES)
    events_in = sum(sample["events"] for sample in samples)
    shares = ", ".join(f"{split} {dataset.num_rows(split)}" for split in SPLITS)
    summary = f"{selected} events selected ({shares})"
    if dropped := counters["dropped_by_balancing"]:
        summary += f"; balance: downsample dropped {dropped}"
    if result.num_reused:
        summary += f"; kernels of {result.num_reused} of {len(result.outputs)} parts reused"
    return Result(
        summary=summary,
        counters=counters,
        checks=[
            Check("events read = events ingested", events_in == total, f"{events_in} = {total}"),
            Check(
                "events = selected + rejections",
                accounted == events_in,
                f"{events_in} = {accounted}",
            ),
            Check("rows in the Parquet = rows planned", rows == kept, f"{rows} = {kept}"),
            Check(
                "one row group per file",
                all(footer.num_row_groups == 1 for footer in found),
                "all footers",
            ),
        ],
        digests=result.digests,
    )
