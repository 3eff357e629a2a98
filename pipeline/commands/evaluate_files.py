"""`evaluate-files`: evaluate other models or other events than those of the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.kernel_pass import EventsFile, kernel_items
from features.schema import identities
from features.spark_job import Unsplit, make_unsplit, track_hint
from hep_core.atomic_files import write_atomically
from hep_core.paths import expand_path
from ingestion.copies import UInt64s
from ingestion.range_output import keys_folder
from ingestion.settings import SampleSettings
from ingestion.tally import sum_counts, sums_by_sample
from models.evaluation.rates import Rates
from pipeline.config import Config
from pipeline.configuration.paths import folder_of_option
from pipeline.errors import ConfigError, MissingInputError, nearest
from pipeline.machine.spark_jobs import counted
from pipeline.reporting.cutflow import cutflow, uncertain_mixtures
from pipeline.reporting.origin import Files
from pipeline.run_folder import RunFolder
from pipeline.runs.counters import FeaturesCounters, IngestCounters
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.own_folders import new_folder
from pipeline.runs.provenance import code_version, now
from pipeline.runs.seen_events import NO_KEYS, count_seen, distinct_keys
from pipeline.runs.trained_models import (
    FoundModel,
    check_definitions,
    check_unseen_events,
    trained_models,
)
from pipeline.stages.base import Context
from pipeline.stages.evaluate import Evaluate, evaluate_models
from pipeline.stages.evaluation_task import make_task, rates_of_cutflow, rates_of_run
from pipeline.stages.features import generated_samples
from pipeline.stages.ingest import Ingest
from training.threads import use_threads

if TYPE_CHECKING:
    from features.normalisation import GeneratedSample

_FOLDER: Final = "evaluations"


class _OfAnyModel(Evaluate):
    """The stage `evaluate` without the networks of this run folder.

    It finds the versions of `ingest` and `features` that fit together, which give rates and files.
    """

    reads: ClassVar = {name: Evaluate.reads[name] for name in ("ingest", "features")}


class _Events(NamedTuple):
    """The events of an evaluation."""

    description: str
    """What the evaluation calls them: the test split, or the `--inputs` as typed."""
    files: list[Path]
    """Parquet files of their features."""
    rates: Rates | None = None
    """Their rates before the classifier; None if these are unknown."""
    inputs: Files = ()
    """Their input files, as a manifest holds them; empty if these are unknown."""
    keys: UInt64s = NO_KEYS
    """Keys of new events, by which copies are known."""


def evaluate_files(
    run_folder: RunFolder, models: Sequence[str], inputs: Sequence[str], out: Path | None
) -> Path:
    """Evaluate models on the test split, or on new ROOT files read by the same code.

    New files are ingested and turned into features in a temporary part of the result's folder. A
    model that was trained on one of the events is refused.

    Its files, in `<run_dir>/evaluations/<number>/` or the given folder, which is returned:
        evaluation.json      models, events, code
        metrics.json, plots/, <model>/...      as in the stage `evaluate`

    Args:
        run_folder: The run folder.
        models: `PATH` or `NAME=PATH` of training folders or ONNX files; empty for the networks of
            this run folder.
        inputs: `CLASS=GLOB` or `SAMPLE=GLOB` of ROOT files; empty for the test split.
        out: A new folder; None for the next number in the run folder.
    """
    config = run_folder.config
    use_threads(config.train.threads)
    # An unknown signal is an error before any work.
    _ = config.signals
    # This lock lets all other commands but a second evaluation run meanwhile.
    with run_folder.locked(_FOLDER):
        folder = _next_folder(config) if out is None else folder_of_option(out, "--out")
        dataset = _dataset(run_folder, is_needed=not inputs)
        found_models = _models(run_folder, models)
        # Models that were trained on other features than those of the config are refused.
        check_definitions(found_models, kernel_items(config.features))
        # The folder gets its name only once all is written.
        with new_folder(folder) as unfinished:
            if inputs or dataset is None:
                events, train = _new_events(run_folder, inputs, unfinished), []
            else:
                rates, files = _rates_of_split(run_folder)
                events = _Events("test split", dataset.files("test"), rates, files)
                # The train split is for the comparison of training and test scores.
                train = dataset.files("train")
            _print_remarks(run_folder, found_models, events)
            metrics = evaluate_models(
                config,
                run_folder.console,
                [model.candidate for model in found_models],
                make_task(config, config.classes, events.rates, config.features, events.inputs),
                events.files,
                unfinished,
                reference=_reference(run_folder, dataset, events),
                train=train,
            )
            for name, run in metrics["runs"].items():
                accuracy = run["accuracy"]["value"]
                run_folder.results.add(f"accuracy of {name} on {events.description} {accuracy:.3f}")
            # What `_new_events` wrote on the way is not part of the result.
            for intermediate in ("features", "events", "keys"):
                shutil.rmtree(unfinished / intermediate, ignore_errors=True)
            record = {
                "created": now(),
                "code_version": code_version(),
                "models": list(models),
                "events": events.description,
                "config": config.model_dump(mode="json"),
            }
            write_atomically(unfinished / "evaluation.json", record)
    return folder


def _next_folder(config: Config) -> Path:
    """Return `<run_dir>/evaluations/<number>` with the number after the highest one there."""
    folder = config.run_dir / _FOLDER
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    return folder / f"{max(numbers, default=0) + 1:04d}"


def _dataset(run_folder: RunFolder, *, is_needed: bool) -> FeatureDataset | None:
    """Return the features of the run folder, if they have the classes and settings of the config.

    Without such features it returns None, or raises if they are needed.

    Raises:
        MissingInputError: They are needed, and there are none, or only others.
    """
    config, version = run_folder.config, run_folder.store("features").current()
    if version is not None:
        dataset = FeatureDataset.load(version.verified().folder)
        has_same_settings = dataset.definitions == kernel_items(config.features)
        if has_same_settings and dataset.classes == config.classes:
            return dataset
    if not is_needed:
        return None
    if version is None:
        raise MissingInputError(
            f"there is no test split in {config.run_dir} yet. "
            f"Run `python -m pipeline features` first, or name ROOT files with --inputs."
        )
    raise MissingInputError(
        "the features of this run folder were made with other settings than those of the config. "
        "Run `python -m pipeline features` first."
    )


def _models(run_folder: RunFolder, models: Sequence[str]) -> list[FoundModel]:
    """Load the named models or, if none is named, all networks of the run folder."""
    if models:
        return find_models(models, run_folder.config.classes)
    trained = run_folder.store("train").current()
    if trained is None:
        raise MissingInputError(
            f"there are no trained networks in {run_folder.config.run_dir}. Name models with "
            "--model, or train first."
        )
    return trained_models(trained.verified(), run_folder.config.classes)


def _rates_of_split(run_folder: RunFolder) -> tuple[Rates | None, Files]:
    """Return rates of the samples [1/s, or events], and the input files, if the events still exist.

    Without the ingested events it prints why there are no rates, and returns `(None, ())`.
    """
    try:
        upstream = run_folder.upstream(_OfAnyModel(), command="evaluate-files")
    except MissingInputError as error:
        run_folder.say(f"  no rates: {error}")
        return None, ()
    return rates_of_run(run_folder.config, upstream), upstream["ingest"].manifest.inputs


def _print_remarks(run_folder: RunFolder, models: Sequence[FoundModel], events: _Events) -> None:
    """Print what limits the results.

    Raises:
        ModelError: A model was trained on some of these events.
    """
    for name in check_unseen_events(models, events.files, events.keys):
        run_folder.say(
            f"  it is unknown whether {name} was trained on these events or on copies of them; if "
            "so, the result means nothing"
        )
    systematics = run_folder.config.evaluate.systematics
    if systematics.jet_scale or systematics.met_scale:
        run_folder.say(
            "  no shifts of energy scales here: evaluate.systematics is for the stage `evaluate`"
        )


def _reference(
    run_folder: RunFolder, dataset: FeatureDataset | None, events: _Events
) -> FeatureDataset | None:
    """Return the dataset to train boosted trees on, as a reference beside the networks.

    None if the config asks for no reference, if there is no dataset, or if its training and
    validation splits hold, or may hold, some of the events. In the last case it prints why.
    """
    if not run_folder.config.evaluate.reference or dataset is None:
        return None
    num_seen = count_seen(dataset, identities(events.files), events.keys)
    if num_seen == 0:
        return dataset
    # None means that the keys, by which copies are known, are missing.
    overlap = "may hold copies" if num_seen is None else f"hold {num_seen}"
    run_folder.say(
        f"  no boosted trees: the training and validation splits {overlap} of these events"
    )
    return None


def _new_events(run_folder: RunFolder, inputs: Sequence[str], folder: Path) -> _Events:
    """Ingest new files into a folder, and compute features with the settings of the config.

    It runs the stage `ingest` outside the run folder's versions, then all features without a split.
    Spark is stopped afterwards.

    Raises:
        FeatureError: No event passes the selection.
    """
    config = run_folder.config
    samples = _samples(inputs, config)
    new_config = config.model_copy(update={"samples": samples})
    # The stage sees no earlier version, so it reads all files and reuses nothing.
    context = Context(
        config=new_config,
        upstream={},
        current=None,
        missing=frozenset(),
        taken_over_parts=frozenset(),
        inputs=Ingest().find_inputs(new_config, None, run_folder.console),
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
        if hint := track_hint(sample, counter):
            context.say(f"note:{hint}")
    if not sum_counts(features.outputs).counts["selected"]:
        raise FeatureError(
            "--inputs: no event of these files passes the selection. Give more, or others."
        )
    rates = _rates_of_new_events(config, generated, ingested.counters, selected)
    # Keys identify the content of an event, so copies in a training are found.
    keys = distinct_keys(keys_folder(context.data_dir / "events"))
    return _Events(", ".join(inputs), features.files, rates, ingested.inputs, keys)


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
) -> Rates | None:
    """Compute the rates of the samples after the selection; None unless all samples have new files.

    The rate of a sample follows from its cross-section and the efficiency of its new events in the
    cutflow. `ingested` and `selected` are counters of the two stages.
    """
    # A sample with `label_by` counts as one sample per class.
    names = {labelled.name for sample in config.samples for labelled in sample.by_label()}
    if names != generated.keys():
        return None
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
    # The name of a class prevails over that of a sample. Files of a sample with `label_by` hold
    # several classes.
    for label, class_name in enumerate(config.classes):
        of_class = [sample for sample in samples if label in sample.labels]
        if len(of_class) == 1 and not of_class[0].label_by:
            by_name[class_name] = of_class[0]
    return by_name


def _without_fixed_sum(sample: SampleSettings) -> SampleSettings:
    """Return the sample, without its cross-section if its sum of weights is a fixed number.

    Such a number belongs to the old files; new files then count by their events.
    """
    if isinstance(sample.sum_of_weights, float):
        return sample.model_copy(update={"cross_section_pb": None, "sum_of_weights": None})
    return sample
