"""Settings of the comparison of optimisers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from models.networks.registry import ModelName


class SeedSettings(BaseModel):
    """Number of seeds per network; a seed sets the initial weights, the order of events and the partners."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hlf: PositiveInt = 10
    """Number of seeds (runs of every method) for the HLF network, at least 1."""
    particles: PositiveInt = 3
    """Number of seeds (runs of every method) for the particles network, at least 1."""
    inclusive: PositiveInt = 3
    """Number of seeds (runs of every method) for the inclusive network, at least 1."""


class EpochSettings(BaseModel):
    """Length of the runs of each network."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hlf: PositiveInt = 40
    """Number of epochs of every run with the HLF network, at least 1."""
    particles: PositiveInt = 8
    """Number of epochs of every run with the particles network, at least 1."""
    inclusive: PositiveInt = 8
    """Number of epochs of every run with the inclusive network, at least 1."""


class TimingEpochSettings(BaseModel):
    """Length of the timing runs, which only measure time, with one worker per core or fewer."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    hlf: PositiveInt = 20
    """Number of epochs of a timing run with the HLF network, at least 1; of several, the first does not count."""
    particles: PositiveInt = 3
    """Number of epochs of a timing run with the particles network, at least 1; of several, the first does not count."""
    inclusive: PositiveInt = 3
    """Number of epochs of a timing run with the inclusive network, at least 1; of several, the first does not count."""


class CompareSettings(BaseModel):
    """A comparison of optimisers; the common settings, such as optimiser and learning rate, come from `train`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    models: list[ModelName] = Field(default=["hlf", "particles"], min_length=1)
    """Networks for the comparison of the methods; their widths come from `model`."""
    workers: int = Field(default=8, ge=2)
    """Number of workers (MPI ranks) of every run, at least 2; the training split needs at least as many row groups."""
    batch_size: PositiveInt = 16
    """Highest number of events per worker and step of every run, at least 1."""
    local_steps: PositiveInt = 3
    """Number H of local steps of `swarm-sgd` between two averages, at least 1."""
    tau: PositiveInt = 12
    """Number of steps between two outer steps of SlowMo, at least 1."""
    beta: float = Field(default=0.6, ge=0, lt=1)
    """Slow momentum factor of SlowMo, at least 0 and below 1."""
    rate_factors: list[Annotated[float, Field(gt=0)]] = Field(default=[0.3, 1.0, 3.0], min_length=1)
    """Learning rates of every method, as factors on `train.learning_rate`, each greater than 0. Each method
    is compared at its own best one by validation loss; [1.0]: all at the same rate."""
    seeds: SeedSettings = SeedSettings()
    epochs: EpochSettings = EpochSettings()
    timing_epochs: TimingEpochSettings = TimingEpochSettings()
    simulated_workers: int = Field(default=1024, ge=2)
    """Highest number of workers in the simulated speed-up curves, at least 2."""

    @field_validator("models", "rate_factors")
    @classmethod
    def _values_differ(cls, value: list[Any]) -> list[Any]:
        for each in value:
            if value.count(each) > 1:
                raise ValueError(f"{each!r} is given twice; each is compared once")
        return value

    def num_seeds(self, model: ModelName) -> int:
        """Number of seeds of a network."""
        return int(getattr(self.seeds, model))

    def num_epochs(self, model: ModelName) -> int:
        """Number of epochs of a network."""
        return int(getattr(self.epochs, model))

    def num_timing_epochs(self, model: ModelName) -> int:
        """Number of epochs of a network's timing runs."""
        return int(getattr(self.timing_epochs, model))
