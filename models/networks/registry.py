"""All networks, and the section `model` of the config, which is built from them. No torch.

To add a network, write its settings with `@network`, in this folder or in a plugin.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo

import models.networks
from hep_core.plugins import after_loading, name_validator
from models.errors import MissingPluginError
from models.networks.network_settings import NETWORKS, NetworkSettings

for _module in pkgutil.iter_modules(models.networks.__path__, "models.networks."):
    if _module.name.endswith("_settings"):
        importlib.import_module(_module.name)


ModelName = Annotated[str, AfterValidator(name_validator(NETWORKS, "network"))]


def settings_of(content: Mapping[str, Any]) -> NetworkSettings:
    """Settings of a network from its `name` and the settings that are not the defaults.

    Raises:
        KeyError: The name is missing.
        MissingPluginError: There is no network of that name.
        ValueError: A value is invalid, or there is no such setting.
    """
    own = dict(content)
    name = own.pop("name")
    if name not in NETWORKS:
        raise MissingPluginError(f"it has the network '{name}', which this code does not have")
    return NETWORKS[name].model_validate(own)


def settings_from_json(content: Mapping[str, Any]) -> NetworkSettings:
    """Read the settings that `NetworkSettings.to_json` wrote.

    Raises:
        KeyError: The name is missing.
        ValueError: A value is invalid, or other code wrote them: what it did without a key is no default of this code.
    """
    found = settings_of(content)
    if missing := found.to_json().keys() - content.keys():
        raise ValueError(
            f"the settings of {found.name} lack {', '.join(sorted(missing))}: other code wrote them"
        )
    return found


class NetworksSettings(BaseModel):
    """The networks of a run folder: trained one after the other, evaluated on the same events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: list[ModelName] = Field(default=["hlf"], min_length=1)

    @field_validator("names")
    @classmethod
    def _names_differ(cls, value: list[ModelName]) -> list[ModelName]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"'{name}' is given twice; each network is trained once")
        return value

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


def _add_sections() -> None:
    """A section for each network."""
    fields = NetworksSettings.__pydantic_fields__
    for name, kind in sorted(NETWORKS.items()):
        fields[name] = FieldInfo.from_annotated_attribute(kind, kind())
    words = " ".join(f"`{name}`: {kind.summary()}" for name, kind in sorted(NETWORKS.items()))
    fields["names"].description = f"Networks to train. {words}"
    NetworksSettings.model_rebuild(force=True)


_add_sections()
after_loading(_add_sections)
