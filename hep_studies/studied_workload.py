"""The workload of a study: a network on the events of a run folder, or rows of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from hep_core.unknown_names import there_is_no
from hep_studies.workloads import images_settings, surface_settings  # noqa: F401 - register themselves
from models.networks.registry import NETWORKS
from pipeline.configuration.mistakes import explain
from pipeline.errors import ConfigError
from training.workloads.registry import WORKLOADS, WorkloadSettings


def workload_settings(workload: Any) -> Any:
    """Return the settings of a workload that has rows of its own, with the type of its `name`.

    The name alone is short for a section with this `name`. The name of a network, which stands for
    training on the events of the run folder, is returned as it is. So is a value that is no
    workload, since a stored result may need a plugin; `check_workload` refuses it.
    """
    types = _types_by_name()
    if isinstance(workload, str) and workload in types and workload not in NETWORKS:
        return types[workload].model_validate({"name": workload})
    if not isinstance(workload, Mapping):
        return workload
    name = workload.get("name")
    if name not in types:
        raise ValueError(there_is_no("workload", str(name), types))
    return types[name].model_validate(workload)


def check_workload(workload: Any, file: str) -> None:
    """Require that the workload of a study exists and has no mistakes.

    Args:
        workload: The value of the key `workload`.
        file: Name of the study's file, for messages.

    Raises:
        ConfigError: It has a mistake; the message names the key and the nearest valid name.
    """
    is_section = isinstance(workload, Mapping)
    if not is_section and not isinstance(workload, str):
        raise ConfigError(
            f"{file}: workload: {workload} is neither the name of a network, nor a section with "
            f"`name`."
        )
    if is_section and "name" not in workload:
        raise ConfigError(f"{file}: 'workload.name' is missing.")
    types = _types_by_name()
    name = workload["name"] if is_section else workload
    # Only the workloads with rows of their own have settings.
    names = list(types) if is_section else [*NETWORKS, *types]
    if name not in names:
        raise ConfigError(f"{file}: workload: {there_is_no('workload', str(name), names)}")
    if not is_section:
        return
    section: type[BaseModel] = create_model("WorkloadSection", workload=(types[name], ...))
    try:
        section.model_validate({"workload": workload})
    except ValidationError as cause:
        raise ConfigError(explain(cause, section, file=file)) from None


def _types_by_name() -> dict[str, type[WorkloadSettings]]:
    """Return the settings of the workloads that have rows of their own, by name."""
    # The events of a run folder are given by the name of a network.
    return {name: settings for name, settings in WORKLOADS.items() if name != "hep"}
