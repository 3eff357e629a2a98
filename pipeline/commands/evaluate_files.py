"""`evaluate-files`: evaluate other models or other events than those of the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.kernel_pass import EventsFile, kernel_items
from features.schema import identities
from features.spark_job import make_unsplit, track_hint
from hep_core.atomic_files import write_atomically
from hep_core.paths import expand_path
from ingestion.copies import UInt64s
from ingestion.settings import SampleSettings
from ingestion.spark_job import keys_folder
from ingestion.tally import sum_counts, sums_by_sample
from models.evaluation.rates import Rates
from pipeline.config import Config
from pipeline.configuration.paths import folder_of_option
from pipeline.errors import ConfigError, MissingInputError, nearest
from pipeline.machine.spark_session import counted
from pipeline.reporting.cutflow import cutflow, uncertain_mixtures
from pipeline.reporting.origin import Files
from pipeline.run_folder import RunFolder
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.own_folders import new_folder
from pipeline.runs.provenance import code_version, now
from pipeline.runs.seen_events import NO_KEYS, count_seen, distinct_keys
from pipeline.runs.trained_models import (
    FoundModel,
    refuse_other_features,
    refuse_seen_events,
    trained_models,
)
from pipeline.stages.base import Context
from pipeline.stages.evaluate import (
    Evaluate,
    evaluated,
    make_task,
    rates_before,
    rates_behind_cutflow,
)
from pipeline.stages.features import generated_samples
from pipeline.stages.ingest import Ingest
from training.threads import use_threads

_FOLDER: Final = "evaluations"


class _OfAnyModel(Evaluate):
    """The stage `evaluate` without the networks of this run folder."""

    reads: ClassVar = {name: Evaluate.reads[name] for name in ("ingest", "features")}


class _Events(NamedTuple):
    """The events of an evaluation."""

    words: str
    files: list[Path]
    rates: Rates | None = None
    inputs: Files = ()
    """Their input files, as a manifest holds them; empty if these are unknown."""
    keys: UInt64s = NO_KEYS
    """Keys of new events, by which copies are known."""


def evaluate_files(
    run_folder: RunFolder, models: Sequence[str], inputs: Sequence[str], out: Path | None
) -> Path:
    """Evaluate models on the test split, or on new ROOT files with the same ingest and feature code.

    Its files, in `<run_dir>/evaluations/<number>/` or the given folder, which is returned:
        evaluation.json      models, events, code
        metrics.json, plots/, <model>/...      as in the stage `evaluate`

    Args:
        run_folder: The run folder.
        models: `PATH` or `NAME=PATH` of training folders or ONNX files; empty for the networks of this run folder.
        inputs: `CLASS=GLOB` or `SAMPLE=GLOB` of ROOT files; empty for the test split.
        out: A new folder; None for the next number in the run folder.
    """
    config = run_folder.config
    use_threads(config.train.threads)
    # One that is not known is asked for before any work.
    _ = config.signals
    with run_folder.locked(_FOLDER):
        folder = _next_folder(config) if out is None else folder_of_option(out, "--out")
        dataset = _dataset(run_folder, is_needed=not inputs)
        found = _models(run_folder, models)
        refuse_other_features(found, kernel_items(config.features))
        with new_folder(folder) as unfinished:
            if inputs or dataset is None:
                events, train = _new_events(run_folder, inputs, unfinished), []
            else:
                events = _Events("test split", dataset.files("test"), *_rates_of_split(run_folder))
                train = dataset.files("train")
            for name in refuse_seen_events(found, events.files, events.keys):
                run_folder.say(
                    f"  it is unknown whether {name} was trained on these events or on copies of them; if so, the "
                    f"result means nothing"
                )
            if any(dict(config.evaluate.systematics).values()):
                run_folder.say(
                    "  no shifts of energy scales here: evaluate.systematics is for the stage `evaluate`"
                )
            metrics = evaluated(
                config,
                run_folder.console,
                [each.candidate for each in found],
                make_task(config, config.classes, events.rates, config.features, events.inputs),
                events.files,
                unfinished,
                reference=_reference(run_folder, dataset, events),
                train=train,
            )
            for name, measured in metrics["runs"].items():
                value = measured["accuracy"]["value"]
                run_folder.results.add(f"accuracy of {name} on {events.words} {value:.3f}")
            for each in ("features", "events", "keys"):
                shutil.rmtree(unfinished / each, ignore_errors=True)
            made = {
                "created": now(),
                "code_version": code_version(),
                "models": list(models),
                "events": events.words,
            }
            write_atomically(
                unfinished / "evaluation.json", {**made, "config": config.model_dump(mode="json")}
            )
    return folder


def _rates_of_split(run_folder: RunFolder) -> tuple[Rates | None, Files]:
    """Rates of the samples, and their files, if the events that the features are of are still there."""
    try:
        upstream = run_folder.upstream(_OfAnyModel(), command="evaluate-files")
    except MissingInputError as error:
        run_folder.say(f"  no rates: {error}")
        return None, ()
    return rates_before(run_folder.config, upstream), upstream["ingest"].manifest["inputs"]


def _dataset(run_folder: RunFolder, *, is_needed: bool) -> FeatureDataset | None:
    """The features of the run folder, if they have the classes and settings of the config."""
    config, version = run_folder.config, run_folder.store("features").current()
    dataset = None if version is None else FeatureDataset.load(version.verified().folder)
    suits = dataset and (dataset.classes, dataset.definitions) == (
        config.classes,
        kernel_items(config.features),
    )
    if is_needed and not suits:
        raise MissingInputError(
            f"there is no test split in {config.run_dir} yet. "
            f"Run `python -m pipeline features` first, or name ROOT files with --inputs."
            if dataset is None
            else "the features of this run folder were made with other settings than those of the config. "
            "Run `python -m pipeline features` first."
        )
    return dataset if suits else None


def _models(run_folder: RunFolder, models: Sequence[str]) -> list[FoundModel]:
    """The named models, or the networks of the run folder."""
    if models:
        return find_models(models, run_folder.config.classes)
    trained = run_folder.store("train").current()
    if trained is None:
        raise MissingInputError(
            f"there are no trained networks in {run_folder.config.run_dir}. Name models with --model, or train first."
        )
    return trained_models(trained.verified(), run_folder.config.classes)


def _new_events(run_folder: RunFolder, inputs: Sequence[str], folder: Path) -> _Events:
    """Ingest new files, and compute their features with the settings of the config."""
    known = run_folder.config
    samples = _samples(inputs, known)
    config = known.model_copy(update={"samples": samples})
    features_dir = folder.absolute() / "features"
    features_dir.mkdir()
    context = Context(
        config=config,
        upstream={},
        current=None,
        missing=frozenset(),
        taken_over_parts=frozenset(),
        found=Ingest().find_inputs(config, None, run_folder.console),
        out_dir=folder,
        data_dir=folder.absolute(),
        spark=run_folder.spark,
        console=run_folder.console,
    )
    try:
        for words in _about_rates(samples, known):
            context.say(f"note: {words}")
        read = Ingest().run(context)
        context.say(read.summary)
        generated = generated_samples(samples, read.counters)
        parts = [
            EventsFile(
                each["name"],
                each["sample"],
                each["digest"],
                str(context.data_dir / "events" / each["name"]),
            )
            for each in read.counters["parts"]
            if each["name"]
        ]
        kept = sum(each["events"] for each in read.counters["samples"].values())
        spark = context.start_spark()
        with context.bar("features", "events") as bar, counted(spark, bar, kept) as done:
            made = make_unsplit(
                spark, parts, generated, config.features, config.classes, features_dir,
                done=done, num_tasks=context.spark.num_tasks,
            )  # fmt: skip
    finally:
        run_folder.spark.stop()
    selected = sums_by_sample(made.outputs)
    for sample, counter in selected["samples"].items():
        if words := track_hint(sample, counter):
            context.say(f"note:{words}")
    if not sum_counts(made.outputs).counts["selected"]:
        raise FeatureError(
            "--inputs: no event of these files passes the selection. Give more, or others."
        )
    rates = None
    if {part.name for each in known.samples for part in each.by_label()} == generated.keys():
        # Efficiencies of a sample are the same for any factor.
        factors = {
            name: {"factor": 1.0, "stated_sum": each.stated_sum} for name, each in generated.items()
        }
        steps = cutflow(
            read.counters, {**selected, "normalisation": factors}, known.model_dump(mode="json")
        )
        rates = rates_behind_cutflow(known, steps, known.features)
    keys = distinct_keys(keys_folder(context.data_dir / "events"))
    return _Events(", ".join(inputs), made.files, rates, read.inputs, keys)


def _about_rates(samples: Sequence[SampleSettings], known: Config) -> list[str]:
    """What to know about the weights and rates of new samples, beside those of the config that is known."""
    given = {each.name for each in samples}
    missing = [each.name for each in known.samples if each.name not in given]
    found = uncertain_mixtures(
        known.model_copy(update={"samples": samples}).model_dump(mode="json")
    )
    if numbers := [each.name for each in known.samples if isinstance(each.sum_of_weights, float)]:
        found.append(
            f"sum_of_weights of {', '.join(numbers)} is a number of other files: new files count by their events, and "
            f"there are no rates. A branch of the files (Runs.genEventSumw) would be summed over the new ones."
        )
    elif missing and all(each.cross_section_pb is not None for each in known.samples):
        found.append(
            f"There are no rates: --inputs names no files of {', '.join(missing)} (SAMPLE=GLOB)."
        )
    return found


def _reference(
    run_folder: RunFolder, dataset: FeatureDataset | None, events: _Events
) -> FeatureDataset | None:
    """The dataset, if boosted trees are wanted and its training events are none of those of the evaluation."""
    if not run_folder.config.evaluate.reference or dataset is None:
        return None
    num_seen = count_seen(dataset, identities(events.files), events.keys)
    if num_seen == 0:
        return dataset
    hold = "may hold copies" if num_seen is None else f"hold {num_seen}"
    run_folder.say(f"  no boosted trees: the training and validation splits {hold} of these events")
    return None


def _next_folder(config: Config) -> Path:
    """The next number."""
    folder = config.run_dir / _FOLDER
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    return folder / f"{max(numbers, default=0) + 1:04d}"


def _samples(inputs: Sequence[str], config: Config) -> list[SampleSettings]:
    """The new files as samples, with the cross-section of the sample that is named, or of the only one of the class."""
    # A number is the sum of the config's own files: new ones count by their events.
    unknown = {"cross_section_pb": None, "sum_of_weights": None}
    known = [
        each.model_copy(update=unknown) if isinstance(each.sum_of_weights, float) else each
        for each in config.samples
    ]
    # The name of a class prevails over that of a sample. Files of `label_by` are of no single class.
    named = {sample.name: sample for sample in known}
    for label, name in enumerate(config.classes):
        first, *others = (each for each in known if label in each.labels)
        if not (others or first.label_by):
            named[name] = first
    found: dict[str, SampleSettings] = {}
    for place, (name, separator, pattern) in enumerate(
        (each.partition("=") for each in inputs), start=1
    ):
        if not separator or name not in named:
            raise ConfigError(
                f"--inputs: there is no sample '{name}', and no class of one sample.{nearest(name, list(named))} Write "
                f"CLASS=GLOB or SAMPLE=GLOB; `python -m pipeline predict` scores files whose classes are unknown."
            )
        sample, file = named[name], expand_path(pattern)
        # Files of unknown cross-section count by their events, each on its own.
        key = f"new-{place}" if sample.cross_section_pb is None else sample.name
        files = [*found[key].files, file] if key in found else [file]
        found[key] = sample.model_copy(update={"name": key, "files": files})
    return list(found.values())
