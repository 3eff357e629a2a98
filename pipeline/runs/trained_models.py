"""The networks of a training, as an evaluation takes them; of exported files it knows nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from features.dataset import FeatureDataset
from features.schema import identities
from features.settings import FeatureSettings
from ingestion.copies import UInt64s
from models.errors import ModelError
from models.prediction import Candidate
from pipeline.runs.seen_events import NO_KEYS, count_seen, dataset_of
from pipeline.runs.store import Version


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


def trained_models(trained: Version, classes: Sequence[str]) -> list[FoundModel]:
    """The networks of a version of `train`, each with its further trainings."""
    found, counters = [], trained.manifest["counters"]
    for network in counters["networks"]:
        folders = [network, *counters["further"].get(network, ())]
        first, *further = (read_trained(folder, trained.folder / folder) for folder in folders)
        for each in (first, *further):
            refuse_other_classes(each, classes)
        others = [each.candidate.model for each in further]
        found.append(first._replace(candidate=first.candidate._replace(further=others)))
    return found


def read_trained(name: str, folder: Path) -> FoundModel:
    """Read the model of a training, under a name."""
    from models.saved_model import load_model  # noqa: PLC0415 - exported files need no torch

    model, spec = load_model(folder / "model")
    records = folder / "metrics" / "rank-0.jsonl"
    history = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    candidate = Candidate(name, model, [json.loads(line) for line in history])
    return FoundModel(candidate, spec.classes, spec.definitions, dataset_of(folder), spec.reading)


def refuse_other_features(models: Sequence[FoundModel], definitions: Mapping[str, Any]) -> None:
    """Refuse models whose features have other definitions than those of the events."""
    # What a model of an earlier version does not state is as it was then: the defaults of later settings.
    defaults = FeatureSettings().model_dump(mode="json")
    for each in models:
        refuse_other_settings(
            each.candidate.name, {**defaults, **each.definitions}, {**defaults, **definitions}
        )


def refuse_other_settings(name: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise `ModelError` if features were made with other settings than those of a model's training."""
    differing = [
        f"{key} {own.get(key, 'not set')} instead of {given.get(key, 'not set')}"
        for key in sorted({*own, *given})
        if own.get(key) != given.get(key)
    ]
    if differing:
        raise ModelError(
            f"{name} was trained on features with other definitions: {', '.join(differing)}. Use the config of its "
            f"training, or train again."
        )


def refuse_other_classes(found: FoundModel, classes: Sequence[str]) -> None:
    """Raise `ModelError` if a model has other classes than the events."""
    if found.classes != list(classes):
        raise ModelError(
            f"{found.candidate.name} was trained for the classes {found.classes}, the config has {list(classes)}. "
            f"Use the config of its training."
        )


def refuse_seen_events(
    models: Sequence[FoundModel], files: Sequence[Path], keys: UInt64s = NO_KEYS
) -> list[str]:
    """Refuse models that were trained, or chosen, on events of the evaluation.

    Copies of training events are known by their `keys`; see `distinct_keys`.

    Returns:
        Names of the models whose training events are unknown.
    """
    events = identities(files)
    unknown = []
    for each in models:
        num_seen = (
            None
            if each.dataset is None
            else count_seen(FeatureDataset.load(each.dataset), events, keys)
        )
        if num_seen is None:
            unknown.append(each.candidate.name)
        elif num_seen:
            raise ModelError(
                f"{each.candidate.name} was trained on {num_seen} of these {len(events)} events, so its results on "
                f"them mean nothing. Evaluate it on events that it has not seen."
            )
    return unknown
