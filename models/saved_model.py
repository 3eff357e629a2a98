"""Networks on disk: `model.json` says how to build one and on what it was made, `weights.pt` holds its tensors."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from features.schema import HLF_NAMES
from models.errors import SavedModelError
from models.hlf import HlfClassifier
from models.settings import ModelSettings

MODEL_VERSION: Final = 1


class ModelSpec(NamedTuple):
    """All that is needed to build a network, weights apart."""

    settings: ModelSettings
    classes: list[str]
    mean: list[float]
    std: list[float]


def build(spec: ModelSpec) -> HlfClassifier:
    """A network with fresh weights from torch's current random state."""
    return HlfClassifier(mean=spec.mean, std=spec.std, hidden=spec.settings.hidden, num_classes=len(spec.classes))


def save_model(model: nn.Module, spec: ModelSpec, folder: Path) -> None:
    """Write a model folder; each file appears whole or not at all.

    Args:
        model: The network.
        spec: How it was built.
        folder: Where to; made if absent.
    """
    folder.mkdir(exist_ok=True)
    weights = folder / ".weights.pt"
    torch.save(model.state_dict(), weights)
    weights.replace(folder / "weights.pt")
    content = {
        "version": MODEL_VERSION,
        "settings": spec.settings.model_dump(mode="json"),
        "classes": spec.classes,
        "inputs": {"hlf": list(HLF_NAMES)},
        "mean": spec.mean,
        "std": spec.std,
    }
    description = folder / ".model.json"
    description.write_text(json.dumps(content, indent=1), encoding="utf-8")
    description.replace(folder / "model.json")


def load_model(folder: Path) -> tuple[HlfClassifier, ModelSpec]:
    """Read a model folder; nothing in it is ever unpickled into code.

    Raises:
        SavedModelError: The folder is incomplete, of another version, or for other features.
    """
    try:
        content: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        state = torch.load(folder / "weights.pt", weights_only=True)
    except (OSError, json.JSONDecodeError, RuntimeError, pickle.UnpicklingError) as cause:
        raise SavedModelError(f"{folder} holds no readable model ({cause}). Train again.") from cause
    if content.get("version") != MODEL_VERSION:
        raise SavedModelError(
            f"{folder}: model version {content.get('version')}, this code reads {MODEL_VERSION}. Train again."
        )
    if content["inputs"] != {"hlf": list(HLF_NAMES)}:
        raise SavedModelError(f"{folder}: the model was made for other features than this code computes. Train again.")
    spec = ModelSpec(ModelSettings(**content["settings"]), content["classes"], content["mean"], content["std"])
    model = build(spec)
    model.load_state_dict(state)
    return model, spec
