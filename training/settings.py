"""What a user may choose about training."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class AlgorithmName(StrEnum):
    """How workers learn together."""

    SGD = "sgd"
    """One worker."""
    AR_SGD = "ar-sgd"
    """Gradients averaged over all workers at every step."""


class OptimizerName(StrEnum):
    """The base optimiser: how a gradient becomes an update."""

    ADAM = "adam"
    SGD = "sgd"


class TrainSettings(BaseModel):
    """How the network is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    #: Keys that change how fast, not what, is computed: they never make a stage stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset({"mpirun_args"})

    algorithm: AlgorithmName = AlgorithmName.AR_SGD
    """`sgd` on one worker, `ar-sgd` on any number."""
    workers: int = Field(default=1, ge=1)
    """MPI ranks; each reads its own row groups."""
    epochs: int = Field(default=20, ge=1)
    """Passes over the training split."""
    batch_size: int = Field(default=128, ge=1)
    """Events per worker and step, at most: steps of an epoch are of nearly equal size."""
    optimizer: OptimizerName = OptimizerName.ADAM
    """Base optimiser."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of one worker."""
    scale_learning_rate: bool = True
    """Multiply the rate by the number of workers for `ar-sgd` with `sgd` (the linear rule; never with `adam`)."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of the `sgd` optimiser."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Of the initial weights and the order of events."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating point numbers of the network."""
    mpirun_args: list[str] = []
    """Further arguments of mpirun, for example `[--hostfile, hosts.txt]`."""

    @model_validator(mode="after")
    def _workers_suit_algorithm(self) -> Self:
        if self.algorithm is AlgorithmName.SGD and self.workers != 1:
            raise ValueError(f"algorithm sgd runs on one worker, not {self.workers}; use ar-sgd")
        return self

    @field_validator("mpirun_args")
    @classmethod
    def _no_number_of_ranks(cls, value: list[str]) -> list[str]:
        for word in ("-n", "-np", "-c", "--n", "--np"):
            if word in value:
                raise ValueError(f"'{word}' sets the number of ranks; set train.workers instead")
        return value

    @property
    def effective_learning_rate(self) -> float:
        """The rate that the optimiser gets: scaled by the linear rule (Goyal et al. 2017) where that applies."""
        linear = self.algorithm is AlgorithmName.AR_SGD and self.optimizer is OptimizerName.SGD
        return self.learning_rate * (self.workers if linear and self.scale_learning_rate else 1)
