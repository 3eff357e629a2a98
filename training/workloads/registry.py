"""All workloads, and their settings: what a study or a run trains. No torch.

To add a workload, write its file in this folder and its settings here, and add them to `WorkloadSettings`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator
from typing_extensions import override

from models.networks.network_settings import NetworkSettings
from models.networks.registry import settings_from_json

if TYPE_CHECKING:
    from training.workloads.workload import Workload


class _Settings(BaseModel, ABC):
    """Settings of one workload."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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


class HepSettings(_Settings):
    """Collision events."""

    name: Literal["hep"] = "hep"
    folder: Path
    """Folder of the features dataset."""
    network: NetworkSettings
    """The network, by its name or as a mapping with its `name` and settings."""
    start_from: Path | None = None
    """Folder of the model that gives the initial weights and scaling; null for fresh weights."""

    @field_validator("network", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        content = {"name": value} if isinstance(value, str) else value
        return settings_from_json(content) if isinstance(content, Mapping) else content

    @property
    @override
    def network_name(self) -> str:
        return self.network.name

    @property
    @override
    def meaning(self) -> dict[str, Any]:
        return self.network.to_json()

    @override
    def open(self) -> Workload:
        from training.workloads.hep import HepEvents

        return HepEvents(self.folder, self.network, self.start_from)

    @override
    def to_json(self, written: Callable[[Path], str]) -> dict[str, Any]:
        return {
            "dataset": written(self.folder),
            "model": self.network.to_json(),
            "start_from": None if self.start_from is None else written(self.start_from),
        }


class _ImageSettings(_Settings):
    """Settings of images in public files."""

    name: str
    network: str
    folder: Path | None = None
    """Folder of the public files; null: the digits that come with scikit-learn, enlarged to the same shape."""
    augmentation: bool = False
    """Whether training takes random crops, of which half are mirrored."""

    @property
    @override
    def network_name(self) -> str:
        return self.network

    @property
    @override
    def meaning(self) -> dict[str, Any]:
        content: dict[str, Any] = self.model_dump(mode="json", exclude={"folder"})
        return content | {"digits": self.folder is None}

    @override
    def open(self) -> Workload:
        from training.workloads.images import open_images

        return open_images(self.name, self.network, self.folder, augmentation=self.augmentation)

    @override
    def to_json(self, written: Callable[[Path], str]) -> dict[str, Any]:
        folder = None if self.folder is None else written(self.folder)
        return {"workload": self.model_dump(mode="json") | {"folder": folder}}


class MnistSettings(_ImageSettings):
    """Handwritten digits (LeCun, Cortes and Burges 1998): 60,000 + 10,000 images of 28 x 28 pixels."""

    name: Literal["mnist"] = "mnist"
    network: Literal["lenet5", "perceptron"] = "lenet5"
    """`lenet5`: the network of the thesis; `perceptron`: 784 - 1000 - 2000 - 1000 - 10 of Hermans (2017)."""
    augmentation: Literal[False] = False
    """None: mirrored digits are other signs."""


class Cifar10Settings(_ImageSettings):
    """Photographs of ten kinds of things (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels, three colours."""

    name: Literal["cifar10"] = "cifar10"
    network: Literal["resnet20", "seven-layers"] = "resnet20"
    """`resnet20`: the network of the thesis; `seven-layers`: that of EASGD (Zhang et al. 2015)."""
    augmentation: bool = True
    """Whether training takes random crops, of which half are mirrored."""


WorkloadSettings = Annotated[HepSettings | MnistSettings | Cifar10Settings, Field(discriminator="name")]
_ADAPTER: Final[TypeAdapter[HepSettings | MnistSettings | Cifar10Settings]] = TypeAdapter(WorkloadSettings)


def workload_from_json(content: Mapping[str, Any], resolved: Callable[[str], Path]) -> WorkloadSettings:
    """Read what `to_json` wrote; other keys are ignored.

    Args:
        content: The plain values.
        resolved: Reads a path from text.

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
    folder = written["folder"]
    return _ADAPTER.validate_python({**written, "folder": None if folder is None else resolved(folder)})
