"""All networks, and the section `model` of the config, which is built from them.

The module imports no torch. To add a network, write its settings with `@network`, in this folder or
in a plugin.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    TypeAdapter,
    create_model,
    field_validator,
)
from pydantic_core import CoreSchema
from typing_extensions import override

import models.networks
from hep_core.plugins import name_validator
from hep_core.settings_section import SettingsSection
from models.errors import MissingPluginError
from models.networks.network_settings import NETWORKS, NetworkSettings

# The import of a settings file registers its network in `NETWORKS`.
for _module in pkgutil.iter_modules(models.networks.__path__, "models.networks."):
    if _module.name.endswith("_settings"):
        importlib.import_module(_module.name)


ModelName = Annotated[str, AfterValidator(name_validator(NETWORKS, "network"))]


def settings_of(saved: Mapping[str, Any]) -> NetworkSettings:
    """Validate settings of a network from its `name` and the values that are not the defaults.

    Raises:
        KeyError: The name is missing.
        MissingPluginError: There is no network of that name.
        ValueError: A value is invalid, or there is no such setting.
    """
    settings = dict(saved)
    name = settings.pop("name")
    if name not in NETWORKS:
        raise MissingPluginError(f"it has the network '{name}', which this code does not have")
    return NETWORKS[name].model_validate(settings)


def settings_from_json(saved: Mapping[str, Any]) -> NetworkSettings:
    """Read the settings that `NetworkSettings.to_json` wrote.

    Raises:
        KeyError: The name is missing.
        ValueError: A value is invalid or missing. Other code wrote the settings: what it did
            without a key need not be the default of this code.
    """
    settings = settings_of(saved)
    missing = settings.to_json().keys() - saved.keys()
    if missing:
        missing_names = ", ".join(sorted(missing))
        raise ValueError(
            f"the settings of {settings.name} lack {missing_names}: other code wrote them"
        )
    return settings


class NetworksSettings(SettingsSection):
    """The networks of a run folder: trained one after the other, evaluated on the same events."""

    names: list[ModelName] = Field(default=["hlf"], min_length=1)

    @classmethod
    @override
    def variants(cls) -> list[type[BaseModel]]:
        """Return the section with the settings of all networks."""
        return [networks_settings()] if cls is NetworksSettings else [cls]

    @field_validator("names")
    @classmethod
    def _names_differ(cls, names: list[ModelName]) -> list[ModelName]:
        """Check that no network is named twice."""
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"'{name}' is given twice; each network is trained once")
        return names

    def of(self, name: ModelName) -> NetworkSettings:
        """Return the settings of the network of this name."""
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


def networks_settings() -> type[NetworksSettings]:
    """Return the class of the section `model`, with a field of settings for each network.

    Networks of plugins that are loaded at the time of the call have a field too.
    """
    return _section_of_networks(tuple(sorted(NETWORKS)))


# Plugins add networks, and each class takes long to build.
@lru_cache(maxsize=1)
def _section_of_networks(names: tuple[str, ...]) -> type[NetworksSettings]:
    """Create the class of the section, with `names` and the settings of each of these networks.

    Every setting has its default. The description of `names` lists the networks.
    """
    summaries = []
    sections: dict[str, Any] = {}
    for name in names:
        settings_class = NETWORKS[name]
        summaries.append(f"`{name}`: {settings_class.summary()}")
        # Each network is a field, with its settings class as type and the defaults as value.
        sections[name] = (settings_class, settings_class())
    description = f"Networks to train. {' '.join(summaries)}"
    names_field = Field(default=["hlf"], min_length=1, description=description)
    return create_model(
        NetworksSettings.__name__,
        __base__=NetworksSettings,
        __doc__=NetworksSettings.__doc__,
        names=(list[ModelName], names_field),
        **sections,
    )


def _validate_networks(section: Any) -> NetworksSettings:
    """Validate the section against the networks that are registered now."""
    return networks_settings().model_validate(section)


class _NetworksSchema:
    """Gives the field the JSON schema of all networks, with those of plugins."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema of the present networks instead of that of the declared type."""
        return handler(TypeAdapter(networks_settings()).core_schema)


AllNetworks = Annotated[
    SerializeAsAny[NetworksSettings], BeforeValidator(_validate_networks), _NetworksSchema()
]
"""The type of the section `model` of the config."""
