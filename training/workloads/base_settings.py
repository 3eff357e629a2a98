"""What the settings of every workload offer. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from training.workloads.workload import Workload


#: Settings class of every workload by name; `training.workloads.registry` imports ours.
WORKLOADS: Final[dict[str, type[BaseSettings]]] = {}
W = TypeVar("W", bound=type[Any])


def workload(settings: W) -> W:
    """Register a class of settings as a workload; a decorator, which returns the class unchanged.

    The name of the workload is the default of its field `name: Literal[...] = ...`.

    Raises:
        ValueError: There is a workload of this name already.
    """
    name = settings.model_fields["name"].default
    if name in WORKLOADS:
        raise ValueError(f"there is a workload '{name}' already")
    WORKLOADS[name] = settings
    return settings


class BaseSettings(BaseModel, ABC):
    """Settings of one workload."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Name of the workload."""

    @property
    @abstractmethod
    def network_name(self) -> str:
        """Name of the network."""

    @property
    def meaning(self) -> dict[str, Any]:
        """Return the settings that the result of a training depends on, as plain values; no paths.

        Checkpoints belong to these values.
        """
        return self.model_dump(mode="json")

    @property
    def reads_from_server(self) -> bool:
        """Whether the rows are on another host, so that ranks need the network."""
        return False

    @abstractmethod
    def open(self) -> Workload:
        """Open the rows; this imports torch."""

    def train_group_rows(self) -> list[int]:
        """Return the number of rows of each row group of the training split."""
        return self.open().group_rows("train")

    def to_json(self, write_path: Callable[[Path], str]) -> dict[str, Any]:
        """Return the settings as plain values, which `workload_from_json` reads.

        The name of the module of this class is among them, so that a reader can import it.
        `write_path`: converts a path to text.
        """
        paths = {name: write_path(field) for name, field in self if isinstance(field, Path)}
        settings = self.model_dump(mode="json") | paths
        return {"workload": settings, "module": type(self).__module__}
