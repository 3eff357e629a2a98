"""Makes training runs for tests and reads what they left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from models.networks.registry import settings_of
from models.saved_model import load_model
from training.algorithms.registry import METHODS
from training.launching.rank import RunSpec
from training.loop.records import read_records
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

_KEYS = {key for method in METHODS.values() for key in method.settings.model_fields} - {"name"}


def train_section(chosen: dict[str, Any]) -> dict[str, Any]:
    """The section `train`: the keys of the method below it; those of other methods are left out."""
    retained = {key: value for key, value in chosen.items() if key not in _KEYS}
    name = retained.get("algorithm", TrainSettings().algorithm.name)
    if isinstance(name, str) and name in METHODS:
        own_value = METHODS[name].settings.model_fields
        retained["algorithm"] = {"name": name} | {
            key: chosen[key] for key in chosen if key in own_value
        }
    return retained


def make_spec(
    dataset: FeatureDataset,
    out: Path,
    *,
    model: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """A short run of a small perceptron on two workers, unless told otherwise.

    Ranks need a second to load petastorm, and get the same batches from Arrow.
    """
    out.mkdir(exist_ok=True)
    chosen = {
        "algorithm": "ar-sgd",
        "workers": 2,
        "epochs": 4,
        "batch_size": 8,
        "reader": "arrow",
    } | train
    network = settings_of(
        model if model and "name" in model else {"name": "hlf", "hidden": [10, 5]} | (model or {})
    )
    workload = HepSettings(folder=dataset.folder, network=network)
    return RunSpec(workload, TrainSettings(**train_section(chosen)), out)


def records(out_dir: Path) -> list[list[dict[str, Any]]]:
    return read_records(out_dir)


def summary(out_dir: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out_dir / "summary.json").read_text(encoding="utf-8"))
    return document


def flat_weights(out_dir: Path) -> NDArray[Any]:
    """All parameters of the saved model in one vector."""
    model, _ = load_model(out_dir / "model")
    flat: NDArray[Any] = torch.cat(
        [parameter.detach().reshape(-1) for parameter in model.parameters()]
    ).numpy()
    return flat
