"""The networks there are, and the section `model` of the config, made from them. No torch.

To add a network, write its file and its settings in this folder, and add it to `NETWORKS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from models.networks.hlf_settings import HlfSettings
from models.networks.inclusive_settings import InclusiveSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings

#: The settings of every network by its name.
NETWORKS: Final[dict[str, type[NetworkSettings]]] = {
    kind.name: kind for kind in (HlfSettings, ParticlesSettings, InclusiveSettings)
}

if TYPE_CHECKING:
    ModelName = str
else:
    ModelName = Literal[tuple(NETWORKS)]


def settings_from_json(content: Mapping[str, Any]) -> NetworkSettings:
    """What `NetworkSettings.to_json` gave.

    Keys of other networks, which files of earlier versions hold too, are left out.

    Raises:
        KeyError: There is no name, or no network of that name.
        ValueError: A value is none.
    """
    kind = NETWORKS[content["name"]]
    return kind.model_validate({key: value for key, value in content.items() if key in kind.model_fields})


class _Names(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    names: list[ModelName] = Field(default=["hlf"], min_length=1)
    """Which. `hlf`: a multilayer perceptron on the high-level features. `particles`: a recurrent network (GRU) over the
    particle list. `inclusive`: both together."""

    @field_validator("names")
    @classmethod
    def _names_differ(cls, value: list[ModelName]) -> list[ModelName]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"'{name}' is given twice; each network is trained once")
        return value


#: A section for each network.
_sections: Any = {name: (kind, kind()) for name, kind in NETWORKS.items()}
_Sections: Any = create_model("_Sections", __base__=_Names, **_sections)


class NetworksSettings(_Sections):
    """The networks of a run folder, trained one after the other and evaluated side by side."""

    if TYPE_CHECKING:
        names: list[str] = []

    def of(self, name: ModelName) -> NetworkSettings:
        """One of them."""
        section: NetworkSettings = getattr(self, name)
        return section

    @property
    def searched(self) -> bool:
        """Whether a network that is trained is to be what the grid search found."""
        return any(self.of(name).is_searched for name in self.names)
