"""All workloads: what a study or a run trains. No torch.

To add a workload, write its file and its settings in this folder, and add these to `WorkloadSettings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from training.workloads.hep_settings import HepSettings
from training.workloads.images_settings import Cifar10Settings, MnistSettings
from training.workloads.surface_settings import SurfaceSettings

WorkloadSettings = Annotated[
    HepSettings | MnistSettings | Cifar10Settings | SurfaceSettings, Field(discriminator="name")
]
_ADAPTER: Final[TypeAdapter[WorkloadSettings]] = TypeAdapter(WorkloadSettings)


def workload_from_json(content: Mapping[str, Any], resolved: Callable[[str], Path]) -> WorkloadSettings:
    """Read what `to_json` wrote; other keys are ignored.

    `resolved`: reads a path from text.

    Raises:
        ValueError: A value is missing or invalid.
    """
    written = content.get("workload")
    if written is None:
        start = content["start_from"]
        return HepSettings(
            folder=resolved(content["dataset"]),
            network=content["model"],
            start_from=None if start is None else resolved(start),
        )
    folder = written.get("folder")
    return _ADAPTER.validate_python(written if folder is None else {**written, "folder": resolved(folder)})
