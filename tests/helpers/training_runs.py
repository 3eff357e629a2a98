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
from training.launching.run_spec import RunSpec
from training.loop.records import read_records
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

_METHOD_KEYS: set[str] = set()
for _method in METHODS.values():
    _METHOD_KEYS.update(_method.settings.model_fields)
_METHOD_KEYS.discard("name")


def train_section(settings: dict[str, Any]) -> dict[str, Any]:
    """The section `train`: the keys of the method below it, without those of other methods."""
    section = {key: value for key, value in settings.items() if key not in _METHOD_KEYS}
    name = section.get("algorithm", TrainSettings().algorithm.name)
    if isinstance(name, str) and name in METHODS:
        method_keys = METHODS[name].settings.model_fields
        method = {key: value for key, value in settings.items() if key in method_keys}
        section["algorithm"] = {"name": name} | method
    return section


def make_spec(
    dataset: FeatureDataset,
    out: Path,
    *,
    model: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """By default a short run of a small perceptron on two workers.

    Ranks need a second to load petastorm, and get the same batches from Arrow.
    """
    out.mkdir(exist_ok=True)
    defaults = {
        "algorithm": "ar-sgd",
        "workers": 2,
        "epochs": 4,
        "batch_size": 8,
        "reader": "arrow",
    }
    network = dict(model or {})
    if "name" not in network:
        network = {"name": "hlf", "hidden": [10, 5]} | network
    workload = HepSettings(folder=dataset.folder, network=settings_of(network))
    return RunSpec(workload, TrainSettings(**train_section(defaults | train)), out)


def records(out_dir: Path) -> list[list[dict[str, Any]]]:
    return read_records(out_dir)


def summary(out_dir: Path) -> dict[str, Any]:
    totals: dict[str, Any] = json.loads((out_dir / "summary.json").read_text(encoding="utf-8"))
    return totals


def flat_weights(out_dir: Path) -> NDArray[Any]:
    """All parameters of the saved model in one vector."""
    model, _ = load_model(out_dir / "model")
    parameters = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    weights: NDArray[Any] = torch.cat(parameters).numpy()
    return weights
