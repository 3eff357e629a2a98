"""The base class of the networks' settings. No torch, so that the config is read without it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from models.networks.classifier import Classifier
    from models.networks.scaling_layer import Scaler


class ReadFrom(StrEnum):
    """The end of the particle list at which a recurrent network starts."""

    START = "start"
    """The first particle first, the last one last."""
    END = "end"
    """The last valid particle first, the first one last."""


class Frame(StrEnum):
    """The directions in which a network sees an event."""

    LEPTON = "lepton"
    """Turned around the beam and mirrored along it, so that the lepton has the azimuth 0 and a positive η."""
    DETECTOR = "detector"
    """As the features are."""


class NetworkSettings(BaseModel):
    """Settings of one network; the fields are its section of the config."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: ClassVar[str]
    """Name of the network in the config and on disk."""
    inputs: ClassVar[tuple[str, ...]]
    """Columns of the features Parquet that the network takes, in the order of its `forward`."""
    not_built: ClassVar[frozenset[str]] = frozenset()
    """Fields that do not change the network, such as `from_gridsearch`."""
    before: ClassVar[Mapping[str, Any]] = {}
    """Fields that files of earlier versions lack, with the values of these versions."""

    @classmethod
    def summary(cls) -> str:
        """The network in a sentence: the first line of the docstring of its settings."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @property
    def is_searched(self) -> bool:
        """Whether the network takes its settings from the grid search."""
        return False

    def build(self, scalers: Mapping[str, Scaler], num_classes: int) -> Classifier:
        """The network with fresh weights; this imports torch.

        Args:
            scalers: A scaler for each scaled input.
            num_classes: Width of the output.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Name and fields; `models.networks.registry.settings_from_json` reads them."""
        return {"name": self.name, **self.model_dump(mode="json", exclude=set(self.not_built))}


class ParticleNetworkSettings(NetworkSettings):
    """Settings that all networks on particles have."""

    inputs: ClassVar[tuple[str, ...]] = ("particles", "num_particles")
    before: ClassVar[Mapping[str, Any]] = {"frame": Frame.DETECTOR}

    frame: Frame = Frame.LEPTON
    """Directions in which the network sees an event; fewer events suffice with `lepton`."""
