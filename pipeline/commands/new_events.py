"""The events of new ROOT files, named on the command line, with their features and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from features.errors import FeatureError
from features.kernel_pass import EventsFile
from features.spark_job import track_hint
from features.unsplit_job import Unsplit, make_unsplit
from hep_core.paths import expand_path
from ingestion.conflicts import check_particles_of_training
from ingestion.range_output import keys_folder
from ingestion.settings import SampleSettings
from ingestion.tally import sum_counts, sums_by_sample
from pipeline.config import Config
from pipeline.errors import ConfigError, nearest
from pipeline.machine.spark_jobs import counted
from pipeline.reporting.cutflow import cutflow, uncertain_mixtures
from pipeline.reporting.origin import Files
from pipeline.run_folder import RunFolder
from pipeline.runs.counters import FeaturesCounters, IngestCounters
from pipeline.runs.event_keys import NO_KEYS, CopyKeys, read_event_keys
from pipeline.runs.trained_models import FoundModel
from pipeline.stages.base import Context
from pipeline.stages.evaluation_task import (
    SelectionRates,
    missing_cross_sections,
    rates_of_cutflow,
)
from pipeline.stages.features import generated_samples
from pipeline.stages.ingest import Ingest

if TYPE_CHECKING:
    from features.normalisation import GeneratedSample


class EvaluatedEvents(NamedTuple):
    """The events of an evaluation."""

    description: str
    """What the evaluation calls them: the test split, or the `--inputs` as typed."""
    files: list[Path]
    """Parquet files of their features."""
    rates: SelectionRates = SelectionRates()
    """Their rates before the classifier."""
    inputs: Files = ()
    """Their input files, as a manifest holds them; empty if these are unknown."""
    keys: CopyKeys = NO_KEYS
    """Keys of new events, by which copies are known."""


def new_events(
    run_folder: RunFolder,
    inputs: Sequence[str],
    folder: Path,
    models: Sequence[FoundModel] = (),
) -> EvaluatedEvents:
    """Ingest new files into a folder, and compute features with the settings of the config.

    It runs the stage `ingest` outside the run folder's versions, then all features without a split.
    Spark is stopped afterwards.

    Args:
        run_folder: The run folder.
        inputs: The files, each with its sample or class.
        folder: Gets events and features.
        models: The models that will score the events.

    Raises:
        ConflictingFilesError: A file has particles and those of a training have none, or the
            reverse.
        FeatureError: No event passes the selection.
    """
    config = run_folder.config
    samples = _samples(inputs, config)
    new_config = config.model_copy(update={"samples": samples})
    stage_inputs = Ingest().find_inputs(new_config, None, run_folder.console)
    for model in models:
        check_particles_of_training(stage_inputs.details.infos, model.reading)
    # The stage sees no earlier version, so it reads all files and reuses nothing.
    context = Context(
        config=new_config,
        upstream={},
        current=None,
        missing=frozenset(),
        taken_over_parts=frozenset(),
        inputs=stage_inputs,
        out_dir=folder,
        data_dir=folder.absolute(),
        spark=run_folder.spark,
        console=run_folder.console,
    )
    try:
        for note in _notes_about_rates(new_config, config):
            context.say(f"note: {note}")
        # The stage writes the selected events of the files as Parquet, and counts them.
        ingested = Ingest().run(context)
        context.say(ingested.summary)
        generated = generated_samples(samples, ingested.counters)
        features = _make_features(context, ingested.counters, generated)
    finally:
        run_folder.spark.stop()
    selected = sums_by_sample(features.outputs)
    for sample, counter in selected["samples"].items():
        if hint := track_hint(sample, counter, may_change_radius=False):
            context.say(f"note:{hint}")
    if not sum_counts(features.outputs).counts["selected"]:
        raise FeatureError(
            "--inputs: no event of these files passes the selection. Give more, or others."
        )
    rates = _rates_of_new_events(config, generated, ingested.counters, selected)
    # By its content and its numbers an event is known in a training.
    keys = read_event_keys(keys_folder(context.data_dir / "events"))
    return EvaluatedEvents(", ".join(inputs), features.files, rates, ingested.inputs, keys)


def _make_features(
    context: Context, ingested: Mapping[str, Any], generated: Mapping[str, GeneratedSample]
) -> Unsplit:
    """Compute the features of all ingested events on Spark; these are not split.

    Args:
        context: Folders, config and Spark.
        ingested: Counters of the stage `ingest`, with the events files as `parts`.
        generated: The samples before any selection, by name.
    """
    features_dir = context.data_dir / "features"
    features_dir.mkdir()
    event_files = []
    for file in ingested["parts"]:
        # A part without events has no file and an empty name.
        if file["name"]:
            path = str(context.data_dir / "events" / file["name"])
            event_files.append(EventsFile(file["name"], file["sample"], file["digest"], path))
    num_events = sum(counts["events"] for counts in ingested["samples"].values())
    spark = context.start_spark()
    with (
        context.bar("features", "events") as bar,
        counted(spark, bar, num_events) as num_events_done,
    ):
        return make_unsplit(
            spark,
            event_files,
            generated,
            context.config.features,
            context.config.classes,
            features_dir,
            event_counter=num_events_done,
            num_tasks=context.spark.num_tasks,
        )


def _rates_of_new_events(
    config: Config,
    generated: Mapping[str, GeneratedSample],
    ingested: Mapping[str, Any],
    selected: Mapping[str, Any],
) -> SelectionRates:
    """Compute the rates of the samples after the selection; none unless all samples have new files.

    The rate of a sample follows from its cross-section and the efficiency of its new events in the
    cutflow. `ingested` and `selected` are counters of the two stages.
    """
    # A sample with `label_by` counts as one sample per class.
    names = {labelled.name for sample in config.samples for labelled in sample.by_label()}
    if names != generated.keys():
        # The notes before the work have said why.
        return SelectionRates()
    # The cutflow gives only efficiencies here, and these are the same for any factor.
    normalisation = {
        name: {"factor": 1.0, "stated_sum": sample.stated_sum} for name, sample in generated.items()
    }
    steps = cutflow(
        IngestCounters.model_validate(ingested),
        FeaturesCounters.model_validate({**selected, "normalisation": normalisation}),
        config.model_dump(mode="json"),
    )
    return rates_of_cutflow(config, steps, config.features)


def _notes_about_rates(new_config: Config, config: Config) -> list[str]:
    """List notes on why weights or rates of the new samples are incomplete.

    Args:
        new_config: The config with the new samples in the place of its own.
        config: The config of the run folder.
    """
    notes = uncertain_mixtures(new_config.model_dump(mode="json"))
    notes += missing_cross_sections(config)
    new_names = {sample.name for sample in new_config.samples}
    missing = [sample.name for sample in config.samples if sample.name not in new_names]
    fixed_sums = [
        sample.name for sample in config.samples if isinstance(sample.sum_of_weights, float)
    ]
    if fixed_sums:
        notes.append(
            f"sum_of_weights of {', '.join(fixed_sums)} is a number of other files: new files "
            "count by their events, and there are no rates. A branch of the files "
            "(Runs.genEventSumw) would be summed over the new ones."
        )
    elif missing and all(sample.cross_section_pb is not None for sample in config.samples):
        notes.append(
            f"There are no rates: --inputs names no files of {', '.join(missing)} (SAMPLE=GLOB)."
        )
    return notes


def _samples(inputs: Sequence[str], config: Config) -> list[SampleSettings]:
    """Make samples of the arguments of `--inputs`, with the cross-sections of the config.

    Several arguments for a sample of known cross-section are one sample, whose rate they share.
    Without a cross-section each argument is a sample of its own, `new-<position>`.

    Raises:
        ConfigError: An argument names no sample, and no class of one sample.
    """
    known_samples = _samples_by_name(config)
    samples: dict[str, SampleSettings] = {}
    for position, argument in enumerate(inputs, start=1):
        name, separator, pattern = argument.partition("=")
        if not separator or name not in known_samples:
            raise ConfigError(
                f"--inputs: there is no sample '{name}', and no class of one "
                f"sample.{nearest(name, known_samples)} Write CLASS=GLOB or SAMPLE=GLOB; `python "
                "-m pipeline predict` scores files whose classes are unknown."
            )
        known_sample = known_samples[name]
        # Files of unknown cross-section count by their events, each on its own.
        is_normalised = known_sample.cross_section_pb is not None
        new_name = known_sample.name if is_normalised else f"new-{position}"
        earlier_files = samples[new_name].files if new_name in samples else []
        files = [*earlier_files, expand_path(pattern)]
        samples[new_name] = known_sample.model_copy(update={"name": new_name, "files": files})
    return list(samples.values())


def _samples_by_name(config: Config) -> dict[str, SampleSettings]:
    """Return the samples by name, and by the name of each class that has just one sample."""
    samples = [_without_fixed_sum(sample) for sample in config.samples]
    by_name = {sample.name: sample for sample in samples}
    for label, class_name in enumerate(config.classes):
        samples_of_class = [sample for sample in samples if label in sample.labels]
        if len(samples_of_class) != 1:
            continue
        (sample,) = samples_of_class
        # Files of a sample with `label_by` hold several classes.
        if not sample.label_by:
            # The name of a class prevails over that of a sample.
            by_name[class_name] = sample
    return by_name


def _without_fixed_sum(sample: SampleSettings) -> SampleSettings:
    """Return the sample, without its cross-section if its sum of weights is a fixed number.

    Such a number belongs to the old files; new files then count by their events.
    """
    if isinstance(sample.sum_of_weights, float):
        return sample.model_copy(update={"cross_section_pb": None, "sum_of_weights": None})
    return sample
