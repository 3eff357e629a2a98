"""What a user may choose about the comparison of optimisers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from models.networks.registry import ModelName


class SeedSettings(BaseModel):
    """How many seeds each network is trained with: the initial weights, the order of events, the partners."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hlf: PositiveInt = 10
    """Runs of every method with the HLF network."""
    particles: PositiveInt = 3
    """Runs of every method with the particles network."""
    inclusive: PositiveInt = 3
    """Runs of every method with the network on both."""


class EpochSettings(BaseModel):
    """How long each network is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hlf: PositiveInt = 40
    """Epochs of every run with the HLF network."""
    particles: PositiveInt = 8
    """Epochs of every run with the particles network."""
    inclusive: PositiveInt = 8
    """Epochs of every run with the network on both."""


class TimingEpochSettings(BaseModel):
    """How long the runs are that only measure time, on as many workers as there are cores or fewer."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hlf: PositiveInt = 20
    """Epochs of them with the HLF network; the first does not count."""
    particles: PositiveInt = 3
    """Epochs of them with the particles network; the first does not count."""
    inclusive: PositiveInt = 3
    """Epochs of them with the network on both; the first does not count."""


class CompareSettings(BaseModel):
    """A comparison of optimisers; the optimiser of each worker, its learning rate and so on come from `train`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    models: list[ModelName] = Field(default=["hlf", "particles"], min_length=1)
    """The networks that the methods are compared with; their widths come from `model`."""
    workers: int = Field(default=8, ge=2)
    """MPI ranks of every run; needs as many training row groups at least; a multiple leaves none out."""
    batch_size: PositiveInt = 16
    """Events per worker and step."""
    local_steps: PositiveInt = 3
    """H: steps of `swarm-sgd` before an average."""
    tau: PositiveInt = 12
    """Steps between two outer steps of SlowMo."""
    beta: float = Field(default=0.6, ge=0, lt=1)
    """Slow momentum factor."""
    seeds: SeedSettings = SeedSettings()
    epochs: EpochSettings = EpochSettings()
    timing_epochs: TimingEpochSettings = TimingEpochSettings()
    simulated_workers: int = Field(default=1024, ge=2)
    """The simulated curves of speed-up reach to so many workers."""

    @field_validator("models")
    @classmethod
    def _models_differ(cls, value: list[ModelName]) -> list[ModelName]:
        for name in value:
            if value.count(name) > 1:
                raise ValueError(f"'{name}' is given twice; each network is compared once")
        return value

    def num_seeds(self, model: ModelName) -> int:
        """Seeds of a network."""
        return int(getattr(self.seeds, model))

    def num_epochs(self, model: ModelName) -> int:
        """Epochs of a network."""
        return int(getattr(self.epochs, model))

    def num_timing_epochs(self, model: ModelName) -> int:
        """Epochs of the runs that only measure time."""
        return int(getattr(self.timing_epochs, model))
