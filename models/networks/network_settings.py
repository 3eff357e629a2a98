"""The base class of the networks' settings. No torch, so that the config is read without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import import_module
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, PositiveInt

from features.columns import INPUT_COLUMNS
from hep_core.registry import PluginRegistry
from hep_core.unknown_names import there_is_no


class ReadFrom(StrEnum):
    """The end of the particle list at which a recurrent network starts."""

    START = "start"
    """The first particle first, the last one last."""
    END = "end"
    """The last valid particle first, the first one last."""


class Frame(StrEnum):
    """The frame in which a network sees an event."""

    LEPTON = "lepton"
    """Turned around the beam and mirrored along it, so that the lepton has the azimuth 0 and a
    positive η."""
    DETECTOR = "detector"
    """As the features are."""


class NetworkSettings(BaseModel):
    """Settings of one network; the fields are its section of the config."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: ClassVar[str]
    """Name of the network in the config and on disk; see `network`."""
    classifier: ClassVar[str] = ""
    """Its class in the module of its name in this folder; a plugin overrides `build` instead."""
    inputs: ClassVar[tuple[str, ...]]
    """Columns of the features Parquet that the network takes, in the order of its `forward`."""
    not_built: ClassVar[frozenset[str]] = frozenset()
    """Fields that do not change the network, such as `from_gridsearch`."""

    @classmethod
    def summary(cls) -> str:
        """Describe the network in a sentence: the first line of the docstring of its settings."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @property
    def is_searched(self) -> bool:
        """Whether the network takes its settings from the grid search."""
        return False

    @property
    def module(self) -> str:
        """The module of the network, which imports these settings, or is that of the settings."""
        return f"models.networks.{self.name}" if self.classifier else type(self).__module__

    def build(self, scalers: Mapping[str, Any], num_classes: int) -> Any:
        """Build the network with fresh weights; this imports torch.

        Args:
            scalers: Scalers of its inputs, for its first layers.
            num_classes: Number of classes.
        """
        return getattr(import_module(self.module), self.classifier)(self, scalers, num_classes)

    def to_json(self) -> dict[str, Any]:
        """Name and fields; `models.networks.registry.settings_from_json` reads them."""
        return {"name": self.name, **self.model_dump(mode="json", exclude=set(self.not_built))}


#: Settings class of every network by name; an import of `models.networks.registry` adds those of
#: the package.
NETWORKS: Final = PluginRegistry[type[NetworkSettings]]("network")
S = TypeVar("S", bound=type[Any])


def network(name: str) -> Callable[[S], S]:
    """Register settings as the network of this name: a section of `model` in the config.

    Raises:
        TypeError: The settings are of another base, or their inputs are a text.
        ValueError: There is such a network, the name cannot be that of a section, a setting has no
            default, or the settings lack inputs or `build`.
    """

    def register(settings: S) -> S:
        # `names` is the key of the section that lists the networks.
        if name == "names" or not name.isidentifier():
            raise ValueError(
                f"'{name}' cannot be the name of a network: "
                "give another one, of letters, digits and _"
            )
        if NetworkSettings not in settings.__mro__:
            raise TypeError(f"{settings.__name__} must be a subclass of NetworkSettings")
        required = [key for key, field in settings.model_fields.items() if field.is_required()]
        if required:
            raise ValueError(f"the settings of '{name}' need defaults: {', '.join(required)}")
        _require_inputs(name, settings)
        if settings.build is NetworkSettings.build and not settings.classifier:
            raise ValueError(
                f"the settings of '{name}' need a function `build`, as NetworkSettings"
            )
        # The class itself stores its name.
        settings.name = name
        NETWORKS.register(name, settings)
        return settings

    return register


def _require_inputs(name: str, settings: type[Any]) -> None:
    """Refuse settings of a network that do not name its inputs.

    Raises:
        TypeError: The inputs are a text.
        ValueError: There are none, or no such input.
    """
    inputs = getattr(settings, "inputs", ())
    if isinstance(inputs, str):
        raise TypeError(f"inputs of '{name}' are a tuple: ({inputs!r},)")
    if not inputs:
        raise ValueError(f"the settings of '{name}' need inputs, such as ('hlf',)")
    for input_name in inputs:
        if input_name not in INPUT_COLUMNS:
            raise ValueError(f"'{name}': {there_is_no('input', input_name, INPUT_COLUMNS)}")


class ParticleNetworkSettings(NetworkSettings):
    """Settings that all networks on particles have."""

    inputs: ClassVar[tuple[str, ...]] = ("particles", "num_particles")

    frame: Frame = Frame.LEPTON
    """Directions in which the network sees an event; fewer events suffice with `lepton`."""


class RecurrentSettings(ParticleNetworkSettings):
    """Settings of networks with a GRU over the particle list."""

    gru_width: PositiveInt = 50
    """Width of the GRU's state, which summarises the particle list; at least 1."""
    read_from: ReadFrom = ReadFrom.END
    """End of the particle list at which the GRU starts: `end` (its last state is that after the
    lepton) or `start`."""
