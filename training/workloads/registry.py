"""All workloads: what a study or a run trains. No torch.

To add a workload, write its file and its settings with `@workload`, in this folder or in a plugin.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import training.workloads
from training.workloads.base_settings import WORKLOADS, BaseSettings
from training.workloads.hep_settings import HepSettings

for _module in pkgutil.iter_modules(training.workloads.__path__, "training.workloads."):
    if _module.name.endswith("_settings"):
        importlib.import_module(_module.name)

WorkloadSettings = BaseSettings


def workload_from_json(
    content: Mapping[str, Any], resolved: Callable[[str], Path]
) -> WorkloadSettings:
    """Read what `to_json` wrote; other keys are ignored. `resolved`: reads a path from text."""
    written = content.get("workload")
    if written is None:
        return HepSettings(folder=resolved(content["dataset"]), network=content["model"])
    folder = written.get("folder")
    settings = dict(written) if folder is None else {**written, "folder": resolved(folder)}
    name = settings["name"]
    if name not in WORKLOADS:
        importlib.import_module(content["module"])
    return WORKLOADS[name].model_validate(settings)
