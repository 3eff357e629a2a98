"""What a user may choose about the networks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

ModelName = Literal["hlf", "particles", "inclusive"]


class ModelSettings(BaseModel):
    """One network; it takes the keys that concern it and leaves the others alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: ModelName = "hlf"
    """`hlf`: a multilayer perceptron on the 14 high-level features. `particles`: a recurrent network (GRU) over the
    particle list. `inclusive`: both together."""
    hidden: list[PositiveInt] = Field(default=[50, 20, 10], min_length=1)
    """`hlf`: widths of its hidden layers; 50, 20, 10 is CERN's network, 50, 20 the text of the thesis."""
    gru_width: PositiveInt = 50
    """`particles`, `inclusive`: width of the GRU's state, which sums up the particle list."""
    dense_width: PositiveInt = 25
    """`inclusive`: width of the hidden layer over the GRU's state and the high-level features."""


class HlfSettings(BaseModel):
    """The perceptron on high-level features."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    hidden: list[PositiveInt] = Field(default=[50, 20, 10], min_length=1)
    """Widths of its hidden layers; 50, 20, 10 is CERN's network, 50, 20 the text of the thesis."""
    from_gridsearch: bool = False
    """Widths, learning rate, batch size and epochs are those that the grid search found best."""


class ParticlesSettings(BaseModel):
    """The recurrent network over the particle list."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    gru_width: PositiveInt = 50
    """Width of the GRU's state, which sums up the particle list."""


class InclusiveSettings(BaseModel):
    """The network on both."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    gru_width: PositiveInt = 50
    """Width of the GRU's state."""
    dense_width: PositiveInt = 25
    """Width of the hidden layer over the GRU's state and the high-level features."""


class NetworksSettings(BaseModel):
    """The networks of a run folder, trained one after the other and evaluated side by side."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    names: list[ModelName] = Field(default=["hlf"], min_length=1)
    """Which; see `ModelSettings.name`."""
    hlf: HlfSettings = HlfSettings()
    particles: ParticlesSettings = ParticlesSettings()
    inclusive: InclusiveSettings = InclusiveSettings()

    @field_validator("names")
    @classmethod
    def _names_differ(cls, value: list[ModelName]) -> list[ModelName]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"'{name}' is given twice; each network is trained once")
        return value

    def of(self, name: ModelName) -> ModelSettings:
        """One of them."""
        section: BaseModel = getattr(self, name)
        widths: dict[str, Any] = section.model_dump(exclude={"from_gridsearch"})
        return ModelSettings(name=name, **widths)

    @property
    def searched(self) -> bool:
        """Whether a network that is trained is to be what the grid search found."""
        return "hlf" in self.names and self.hlf.from_gridsearch
