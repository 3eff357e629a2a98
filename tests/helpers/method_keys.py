"""Settings of a training with the keys of the method beside its name."""

from __future__ import annotations

from typing import Any

from training.algorithms.registry import METHODS
from training.settings import TrainSettings

_KEYS = {key for method in METHODS.values() for key in method.settings.model_fields} - {"name"}


def nested(chosen: dict[str, Any]) -> dict[str, Any]:
    """The section `train`: the keys of the method below it; those of other methods are left out."""
    kept = {key: value for key, value in chosen.items() if key not in _KEYS}
    name = kept.get("algorithm", TrainSettings().algorithm.name)
    if isinstance(name, str) and name in METHODS:
        own = METHODS[name].settings.model_fields
        kept["algorithm"] = {"name": name} | {key: chosen[key] for key in chosen if key in own}
    return kept
