"""All networks, and the section `model` of the config, which is built from them. No torch.

To add a network, write its file and its settings in this folder, and add it to `NETWORKS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from models.networks.deepsets_settings import DeepSetsSettings
from models.networks.hlf_settings import HlfSettings
from models.networks.inclusive_settings import InclusiveSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings
from models.networks.transformer_settings import TransformerSettings

#: Settings class of every network by name.
NETWORKS: Final[dict[str, type[NetworkSettings]]] = {
    kind.name: kind
    for kind in (HlfSettings, ParticlesSettings, InclusiveSettings, DeepSetsSettings, TransformerSettings)
}

if TYPE_CHECKING:
    ModelName = str
else:
    ModelName = Literal[tuple(NETWORKS)]


def settings_of(content: Mapping[str, Any]) -> NetworkSettings:
    """Settings of a network from its `name` and the settings that are not the defaults.

    Raises:
        KeyError: The name is missing, or there is no network of that name.
        ValueError: A value is invalid, or there is no such setting.
    """
    own = dict(content)
    return NETWORKS[own.pop("name")].model_validate(own)


def settings_from_json(content: Mapping[str, Any]) -> NetworkSettings:
    """Read the settings that `NetworkSettings.to_json` wrote.

    Raises:
        KeyError: The name is missing, or there is no network of that name.
        ValueError: A value is invalid, or other code wrote them: what it did without a key is no default of this code.
    """
    found = settings_of(content)
    if missing := found.to_json().keys() - content.keys():
        raise ValueError(f"the settings of {found.name} lack {', '.join(sorted(missing))}: other code wrote them")
    return found


class _Names(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    names: list[ModelName] = Field(
        default=["hlf"],
        min_length=1,
        description=f"Networks to train. {' '.join(f'`{name}`: {kind.summary()}' for name, kind in NETWORKS.items())}",
    )

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
    """The networks of a run folder: trained one after the other, evaluated on the same events."""

    if TYPE_CHECKING:
        names: list[str] = []

    def of(self, name: ModelName) -> NetworkSettings:
        """Settings of one network."""
        section: NetworkSettings = getattr(self, name)
        return section

    @property
    def modules(self) -> list[str]:
        """The modules of the networks to train."""
        return [self.of(name).module for name in self.names]

    @property
    def searched(self) -> bool:
        """Whether one of the networks to train takes its settings from the grid search."""
        return any(self.of(name).is_searched for name in self.names)
