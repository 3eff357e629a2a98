"""All workloads that a study or a run can train. It imports no torch.

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

# Each module of settings registers its workload when it is imported.
for _module in pkgutil.iter_modules(training.workloads.__path__, "training.workloads."):
    if _module.name.endswith("_settings"):
        importlib.import_module(_module.name)

WorkloadSettings = BaseSettings


def workload_from_json(
    content: Mapping[str, Any], read_path: Callable[[str], Path]
) -> WorkloadSettings:
    """Make settings from what `to_json` wrote; other keys are ignored.

    Content without the key `workload` is that of `HepSettings`. A workload that is not registered
    yet is registered by the import of its module. `read_path`: reads text as a path.
    """
    if "workload" not in content:
        return HepSettings(
            folder=read_path(content["dataset"]),
            network=content["model"],
            plugin_code=content.get("plugin_code", {}),
        )
    settings = dict(content["workload"])
    if settings.get("folder") is not None:
        settings["folder"] = read_path(settings["folder"])
    name = settings["name"]
    if name not in WORKLOADS:
        importlib.import_module(content["module"])
    return WORKLOADS[name].model_validate(settings)
