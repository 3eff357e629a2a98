"""Networks on disk: `model.json` holds the specification of a network, `weights.pt` its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from features.columns import INPUT_COLUMNS
from hep_core import plugins
from hep_core.allocation import lack_of_memory
from hep_core.integrity import SEAL, file_digest, has_seal, with_seal
from models.errors import DamagedModelError, MissingPluginError, ModelInputError, SavedModelError
from models.inputs import check_inputs_match, inputs_json
from models.networks.classifier import Classifier
from models.networks.network_settings import NetworkSettings
from models.networks.registry import settings_from_json
from models.networks.scaling_layer import Scaler

#: Version of the form of `model.json`; files of another version are refused.
MODEL_VERSION: Final = 3


class ModelSpec(NamedTuple):
    """Everything needed to build a network, except its weights."""

    settings: NetworkSettings
    """Settings of the network, such as the widths of its layers."""
    classes: list[str]
    """Names of the classes, in the order of the logits."""
    scalers: dict[str, Scaler]
    """Scalers of the features, by input column."""
    definitions: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Definitions of the features on which it was trained."""
    reading: dict[str, Any] = {}  # noqa: RUF012 - never changed
    """Settings by which the events of its training were read; empty if unknown."""
    plugins: list[str] = []  # noqa: RUF012 - never changed
    """Plugins of its training, files without their folders."""
    plugin_code: dict[str, str] = {}  # noqa: RUF012 - never changed
    """Digests of the plugins that it needs, by part such as `feature NAME` or `network NAME`; empty
    if unknown."""

    def described(self) -> dict[str, Any]:
        """Return the description that every form of the network on disk contains, for JSON.

        The scalers are left out: an exported network holds them as constants.
        """
        description = self._asdict()
        del description["scalers"]
        description["settings"] = self.settings.to_json()
        description["inputs"] = inputs_json(self.settings.inputs)
        return description


def model_spec(
    settings: NetworkSettings, dataset: Any, network_code: Mapping[str, str] | None = None
) -> ModelSpec:
    """Collect the specification of a network from its settings and a dataset.

    `dataset` is a `features.dataset.FeatureDataset`. A scaler that it lacks is a `ModelInputError`.
    `network_code` is the part of `ModelSpec.plugin_code` about the network; None for one of ours.
    """
    dataset_scalers = dataset.scaler()
    # Some inputs, such as the number of particles, are not scaled.
    scaled_inputs = [name for name in settings.inputs if INPUT_COLUMNS[name].is_scaled]
    missing = [name for name in scaled_inputs if name not in dataset_scalers]
    if missing:
        raise ModelInputError(f"the dataset has no scaler for {missing}. Make the features again.")
    scalers = {name: Scaler.from_json(dataset_scalers[name]) for name in scaled_inputs}
    # Features of plugins are columns of `hlf`.
    feature_code = dataset.plugin_code if "hlf" in settings.inputs else {}
    return ModelSpec(
        settings,
        list(dataset.classes),
        scalers,
        dataset.definitions,
        dataset.reading,
        plugins.names(),
        {**feature_code, **(network_code or {})},
    )


def build(spec: ModelSpec) -> Classifier:
    """Build a network with fresh weights, of torch's random state and default type."""
    network: Classifier = spec.settings.build(spec.scalers, len(spec.classes))
    return network


def save_model(model: nn.Module, spec: ModelSpec, folder: Path) -> None:
    """Write a model folder: `weights.pt`, and `model.json` with the digest of the weights.

    Each file is written under a hidden name and then renamed, so that it is never incomplete. A
    kill at any time leaves a folder that `load_model` can read.
    """
    folder.mkdir(exist_ok=True)
    weights, unfinished = folder / "weights.pt", folder / ".weights.pt"
    torch.save(model.state_dict(), unfinished)
    description = {
        "version": MODEL_VERSION,
        **spec.described(),
        "scalers": {name: scaler._asdict() for name, scaler in spec.scalers.items()},
    }
    digest = file_digest(unfinished)
    if weights.exists():
        # A kill between the two renames leaves old weights, so the description names both digests
        # for now.
        _write_description(folder, {**description, "weights": [digest, file_digest(weights)]})
    unfinished.replace(weights)
    _write_description(folder, {**description, "weights": [digest]})


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write `model.json` atomically, with a seal: a digest of its own content."""
    unfinished = folder / ".model.json"
    unfinished.write_text(json.dumps(with_seal(description), indent=1), encoding="utf-8")
    unfinished.replace(folder / "model.json")


def load_model(folder: Path) -> tuple[Classifier, ModelSpec]:
    """Read a model folder to the CPU; unpickling runs no code from it.

    Raises:
        SavedModelError: The model cannot be read.
        DamagedModelError: A file of it is not what was written.
    """
    try:
        description: Any = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if isinstance(description, dict):
            _check_digests(folder, description)
        state = torch.load(folder / "weights.pt", weights_only=True, map_location="cpu")
    except DamagedModelError:
        raise
    except Exception as cause:  # Unpickling damaged bytes raises almost any error.
        if lack_of_memory(cause):
            raise
        raise SavedModelError(
            f"{folder} holds no readable model ({cause}). Train again."
        ) from cause
    # A version that does not fit explains more than the errors that follow from it.
    version = description.get("version") if isinstance(description, dict) else None
    if version != MODEL_VERSION:
        raise SavedModelError(
            f"{folder}: model version {version}; this code reads {MODEL_VERSION}. Train again."
        )
    try:
        spec = _spec_from_json(description)
        model = build(spec)
        model.load_state_dict(state)
    except MissingPluginError as cause:
        raise cause.for_model(folder, description.get("plugins", [])) from cause
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        ModelInputError,
    ) as cause:
        raise SavedModelError(f"{folder} holds no usable model ({cause}). Train again.") from cause
    return model, spec


def _check_digests(folder: Path, description: dict[str, Any]) -> None:
    """Check that the files of a model are as they were written.

    The description has a digest of itself, the seal, and the digests of the weights that may belong
    to it. A file that does not fit is a `DamagedModelError`. Models of earlier releases have no
    digests.
    """
    digests = description.get("weights")
    # The seal is a digest of the description itself.
    if SEAL in description and not has_seal(description):
        damaged = "model.json"
    elif digests is not None and file_digest(folder / "weights.pt") not in digests:
        damaged = "weights.pt"
    else:
        return
    raise DamagedModelError(
        folder / damaged, "it does not belong to the other file of this model", "train"
    )


def _spec_from_json(description: dict[str, Any]) -> ModelSpec:
    """Read the specification from `model.json`; its features must be those of this code."""
    settings = settings_from_json(description["settings"])
    check_inputs_match(description["inputs"], settings.inputs)
    scalers = {name: Scaler(**fields) for name, fields in description["scalers"].items()}
    return ModelSpec(
        settings,
        description["classes"],
        scalers,
        description["definitions"],
        description.get("reading", {}),
        description.get("plugins", []),
        description.get("plugin_code", {}),
    )
