"""Settings of the workloads of images, `mnist` and `cifar10`. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from training.workloads.base_settings import BaseSettings, workload

if TYPE_CHECKING:
    from training.workloads.workload import Workload


class _ImageSettings(BaseSettings):
    """Settings of images in public files."""

    name: str
    network: str
    folder: Path | None = None
    """Folder of the public files; null: the digits of scikit-learn, enlarged to the same shape."""
    augmentation: bool = False
    """Whether training takes random crops, of which half are mirrored."""

    @property
    @override
    def network_name(self) -> str:
        return self.network

    @property
    @override
    def meaning(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"folder"}) | {"digits": self.folder is None}

    @override
    def open(self) -> Workload:
        from hep_studies.workloads.images import Images

        return Images(self.name, self.network, self.folder, augmentation=self.augmentation)


@workload
class MnistSettings(_ImageSettings):
    """Handwritten digits (LeCun et al. 1998): 60,000 + 10,000 images of 28 x 28 pixels."""

    name: Literal["mnist"] = "mnist"
    network: Literal["lenet5", "perceptron"] = "lenet5"
    """`lenet5`: the network of the thesis; `perceptron`: 784 - 1000 - 2000 - 1000 - 10 of Hermans
    (2017)."""
    augmentation: Literal[False] = False
    """None: mirrored digits are other signs."""


@workload
class Cifar10Settings(_ImageSettings):
    """Photographs of ten classes (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels."""

    name: Literal["cifar10"] = "cifar10"
    network: Literal["resnet20", "seven-layers"] = "resnet20"
    """`resnet20`: the network of the thesis; `seven-layers`: that of EASGD (Zhang et al. 2015)."""
    augmentation: bool = True
    """Whether training takes random crops, of which half are mirrored."""
