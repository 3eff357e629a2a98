"""`evaluate-files`: evaluate other models or other events than those of the run folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from features.dataset import FeatureDataset
from features.kernel_pass import kernel_items
from features.schema import identities
from hep_core.atomic_files import write_atomically
from pipeline.commands.new_events import EvaluatedEvents, new_events
from pipeline.config import Config
from pipeline.configuration.paths import folder_of_option
from pipeline.errors import MissingInputError
from pipeline.reporting.origin import Files
from pipeline.run_folder import RunFolder
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.own_folders import new_folder
from pipeline.runs.plugin_code import check_plugin_code, feature_code
from pipeline.runs.provenance import code_version, now
from pipeline.runs.seen_events import count_seen
from pipeline.runs.trained_models import (
    FoundModel,
    check_definitions,
    check_particles,
    check_unseen_events,
    known_thresholds,
    trained_models,
)
from pipeline.stages.evaluate import Evaluate, evaluate_models
from pipeline.stages.evaluation_task import SelectionRates, make_task, rates_of_run
from training.threads import use_threads

_FOLDER: Final = "evaluations"


class _EvaluateAnyModel(Evaluate):
    """The stage `evaluate` without the networks of this run folder.

    It finds the versions of `ingest` and `features` that fit together, which give rates and files.
    """

    reads: ClassVar = {name: Evaluate.reads[name] for name in ("ingest", "features")}


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
    with run_folder.locked(_FOLDER, only_reads=True):
        folder = _next_folder(config) if out is None else folder_of_option(out, "--out")
        dataset = _dataset(run_folder, is_needed=not inputs)
        found_models = _models(run_folder, models)
        # Models that were trained on other features than those of the config are refused.
        reading = config.ingest.model_dump(mode="json")
        check_definitions(found_models, kernel_items(config.features), reading)
        check_plugin_code(found_models, None if inputs else dataset)
        # The folder gets its name only once all is written.
        with new_folder(folder) as unfinished:
            if inputs or dataset is None:
                events, train = new_events(run_folder, inputs, unfinished, found_models), []
            else:
                check_particles(found_models, dataset.reading)
                rates, files = _rates_of_split(run_folder, dataset)
                events = EvaluatedEvents("test split", dataset.files("test"), rates, files)
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
            # What `new_events` wrote on the way is not part of the result.
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
        # The features of the run folder train the reference; those of new events are computed now.
        has_same_code = is_needed or dataset.plugin_code in ({}, feature_code())
        if (
            has_same_settings
            and has_same_code
            and _has_same_thresholds(dataset, config)
            and dataset.classes == config.classes
        ):
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
        "Run `python -m pipeline run --until features` first."
    )


def _has_same_thresholds(dataset: FeatureDataset, config: Config) -> bool:
    """Return whether the events of a dataset were read with the thresholds of the config.

    Features of an earlier release do not say how, and count as the same.
    """
    thresholds = known_thresholds(dataset.reading)
    thresholds_of_config = known_thresholds(config.ingest.model_dump(mode="json"))
    return not thresholds or thresholds == thresholds_of_config


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


def _rates_of_split(run_folder: RunFolder, dataset: FeatureDataset) -> tuple[SelectionRates, Files]:
    """Return rates of the samples [1/s, or events], and the input files, if the events still exist.

    Without the ingested events it prints why there are no rates, and returns none and no files.
    """
    # A run beside this command may have put other features in use since.
    evaluated_features = run_folder.store("features").version(dataset.folder.name)
    replacements = {}
    if evaluated_features is not None:
        replacements["features"] = evaluated_features
    try:
        upstream = run_folder.upstream(
            _EvaluateAnyModel(), command="evaluate-files", replacements=replacements
        )
    except MissingInputError as error:
        run_folder.say(f"  no rates: {error}")
        return SelectionRates(), ()
    return rates_of_run(run_folder.config, upstream), upstream["ingest"].manifest.inputs


def _print_remarks(
    run_folder: RunFolder, models: Sequence[FoundModel], events: EvaluatedEvents
) -> None:
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
    run_folder: RunFolder, dataset: FeatureDataset | None, events: EvaluatedEvents
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
