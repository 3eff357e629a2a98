"""The networks of a training, as an evaluation takes them; of exported files it knows nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from features.dataset import FeatureDataset
from features.schema import identities
from features.settings import FeatureSettings, ingest_thresholds
from ingestion.file_info import HAS_PARTICLES
from ingestion.settings import IngestSettings
from models.errors import ModelError
from models.prediction import Candidate
from pipeline.runs.counters import TrainCounters
from pipeline.runs.event_keys import NO_KEYS, CopyKeys
from pipeline.runs.seen_events import count_seen, dataset_of
from pipeline.runs.version import Version


class FoundModel(NamedTuple):
    """A model with its provenance."""

    candidate: Candidate
    classes: list[str]
    definitions: Mapping[str, Any]
    """Definitions of the features that it was trained on."""
    dataset: Path | None
    """The features that it was trained on; None if they are unknown or gone."""
    reading: Mapping[str, Any]
    """Settings by which the events of its training were read; empty if unknown."""
    plugin_code: Mapping[str, str] = {}
    """Digests of the plugins that it needs, by part; empty if unknown. See
    `models.saved_model.ModelSpec`."""


def trained_models(trained: Version, classes: Sequence[str]) -> list[FoundModel]:
    """Read the networks of a version of `train`, each with its further trainings.

    Further trainings are of the same network with other seeds; an evaluation shows their spread.

    Raises:
        ModelError: A network has other classes.
    """
    counters = trained.counters(TrainCounters)
    models = []
    for network in counters.networks:
        # The first training has the name of the network, the others have folders beside it.
        folders = [network, *counters.further.get(network, {})]
        trainings = [read_trained(folder, trained.folder / folder) for folder in folders]
        for training in trainings:
            check_classes(training, classes)
        first, *further = trainings
        further_models = [training.candidate.model for training in further]
        candidate = first.candidate._replace(further=further_models)
        models.append(first._replace(candidate=candidate))
    return models


def read_trained(name: str, folder: Path) -> FoundModel:
    """Read the model in the folder of a training, and name it.

    The records of its epochs, which plots of the loss need, come along if they are there.
    """
    from models.saved_model import load_model  # noqa: PLC0415 - exported files need no torch

    model, spec = load_model(folder / "model")
    records = folder / "metrics" / "rank-0.jsonl"
    lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    history = [json.loads(line) for line in lines]
    candidate = Candidate(name, model, history)
    return FoundModel(
        candidate,
        spec.classes,
        spec.definitions,
        dataset_of(folder),
        spec.reading,
        spec.plugin_code,
    )


def check_definitions(
    models: Sequence[FoundModel], definitions: Mapping[str, Any], reading: Mapping[str, Any]
) -> None:
    """Refuse models whose features are defined otherwise than those of the events.

    Thresholds of ingest are part of the definition: they decide which tracks are in an isolation,
    and which jets have a b-tag.

    Args:
        models: Models, each with the definitions (settings) of the features of its training.
        definitions: The definitions of the features of the events.
        reading: How the events were read; empty if unknown, which fits all models.

    Raises:
        ModelError: A definition differs.
    """
    # A model of an earlier release does not state later settings: they had their defaults.
    defaults = FeatureSettings().model_dump(mode="json")
    event_definitions = {**defaults, **definitions}
    event_thresholds = known_thresholds(reading)
    for model in models:
        name = model.candidate.name
        check_same_settings(name, {**defaults, **model.definitions}, event_definitions)
        thresholds = known_thresholds(model.reading)
        # Where those of one side are unknown, there is nothing to compare.
        if thresholds and event_thresholds:
            check_same_settings(name, thresholds, event_thresholds)


def known_thresholds(reading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the thresholds by which events were read; empty if it is unknown how.

    What an earlier release made does not state later thresholds: they had their defaults.
    """
    if not reading:
        return {}
    defaults = IngestSettings().model_dump(mode="json")
    return ingest_thresholds({**defaults, **reading})


def check_particles(models: Sequence[FoundModel], reading: Mapping[str, Any]) -> None:
    """Refuse models of files with particles for events of files without them, and the reverse.

    Args:
        models: Models, each with how the events of its training were read.
        reading: How the events were read. What an earlier release made does not say whether its
            files have particles, and fits all.

    Raises:
        ModelError: There is such a model.
    """
    has_particles = reading.get(HAS_PARTICLES)
    for model in models:
        trained_with = model.reading.get(HAS_PARTICLES, has_particles)
        if has_particles is not None and trained_with != has_particles:
            verb, other_verb = ("have", "lack") if trained_with else ("lack", "have")
            raise ModelError(
                f"{model.candidate.name} was trained on files that {verb} tracks, photons and "
                f"neutral hadrons; those of these events {other_verb} them, so that isolations of "
                f"leptons mean something else. Use files of one kind, or train again."
            )


def check_same_settings(
    model: str, training_settings: Mapping[str, Any], event_settings: Mapping[str, Any]
) -> None:
    """Refuse features that were made with other settings than those of a model's training.

    Raises:
        ModelError: A setting differs.
    """
    differences = []
    for key in sorted({*training_settings, *event_settings}):
        if training_settings.get(key) != event_settings.get(key):
            trained = training_settings.get(key, "not set")
            present = event_settings.get(key, "not set")
            differences.append(f"{key} {trained} instead of {present}")
    if differences:
        raise ModelError(
            f"{model} was trained on features with other definitions: {', '.join(differences)}. "
            f"Use the config of its training, or train again."
        )


def check_classes(model: FoundModel, classes: Sequence[str]) -> None:
    """Refuse a model that has other classes than the events.

    Raises:
        ModelError: The classes differ.
    """
    if model.classes != list(classes):
        raise ModelError(
            f"{model.candidate.name} was trained for the classes {model.classes}, the config has "
            f"{list(classes)}. Use the config of its training."
        )


def check_unseen_events(
    models: Sequence[FoundModel], files: Sequence[Path], keys: CopyKeys = NO_KEYS
) -> list[str]:
    """Refuse models that were trained, or chosen by their validation, on events to evaluate.

    Args:
        models: The models.
        files: Features of the events to evaluate.
        keys: Keys of the events, by which copies of training events in other files are found.

    Returns:
        Names of the models whose training events are unknown.

    Raises:
        ModelError: A model has seen some of the events.
    """
    events = identities(files)
    unknown = []
    # The models of a run folder share their features. Without features the events are unknown.
    num_seen_by_dataset: dict[Path | None, int | None] = {None: None}
    for model in models:
        folder = model.dataset
        if folder is not None and folder not in num_seen_by_dataset:
            dataset = FeatureDataset.load(folder)
            num_seen_by_dataset[folder] = count_seen(dataset, events, keys)
        num_seen = num_seen_by_dataset[folder]
        if num_seen is None:
            unknown.append(model.candidate.name)
        elif num_seen:
            raise ModelError(
                f"{model.candidate.name} was trained on {num_seen} of these {len(events)} events, "
                f"so its results on them mean nothing. Evaluate it on events that it has not seen."
            )
    return unknown
