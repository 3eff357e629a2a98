"""What the settings of every workload offer. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from training.workloads.workload import Workload


class BaseSettings(BaseModel, ABC):
    """Settings of one workload."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    @abstractmethod
    def network_name(self) -> str:
        """Name of the network."""

    @property
    @abstractmethod
    def meaning(self) -> dict[str, Any]:
        """What the result of a training depends on, as plain values; no places of files."""

    @abstractmethod
    def open(self) -> Workload:
        """Open the rows; this imports torch.

        Raises:
            FeatureError: The features dataset cannot be read.
            NoEventsError: A split has no events.
            ImageFileError: A file of images is missing, damaged, or another than the public one.
            WarmStartError: The training cannot start from the configured model.
        """

    @abstractmethod
    def to_json(self, written: Callable[[Path], str]) -> dict[str, Any]:
        """The settings as plain values, which `workload_from_json` reads.

        Args:
            written: Writes a path as text.
        """
