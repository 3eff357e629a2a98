"""LocalSGD: H local steps, then an average of the parameters by an all-reduce.

Source: Lin et al. 2018; thesis, 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from training.algorithms.base import (
    Algorithm,
    ComputeGradient,
    StatePolicy,
    Worker,
    mean_over_workers,
    reset_optimizer,
)
from training.algorithms.method import MethodSettings, Traits, algorithm
from training.transports.basics import Vector


class LocalStepsSettings(MethodSettings):
    """Settings of a method with local steps between exact averages."""

    local_steps: int = Field(default=3, ge=1)
    """Number H of local steps between two averages, at least 1."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("averages",)


class LocalSgdSettings(LocalStepsSettings):
    """Average parameters over all workers after some local steps."""

    name: Literal["local-sgd"]


@algorithm(
    "local-sgd",
    LocalSgdSettings,
    Traits(title="LocalSGD", exact_average=True, averages_models=True, needs_others=True),
)
class LocalSgd(Algorithm):
    """Take H local steps, x_i <- x_i - gamma * g_i, then average: x_i <- sum_j x_j / m.

    x_i is the model of worker i of m, g_i its gradient, and gamma the learning rate.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_mean",)
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: LocalStepsSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._local_steps = settings.local_steps
        # SlowMo's default policy applies to its outer steps only; the averages in between have
        # their own.
        self._resets_optimizer = worker.optimizer_state is StatePolicy.RESET
        self._steps_since_average = 0
        self._mean = self.model.empty()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step; after every `local_steps` of them, average over all workers."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self._steps_since_average += 1
        if self._steps_since_average == self._local_steps:
            await self._average()
            self._steps_since_average = 0

    async def _average(self) -> None:
        """Average the models of all workers, and continue from what `next_model` makes of it."""
        self.model.read(self._mean)
        await mean_over_workers(self._mean, self.transport)
        self.actions["averages"] += 1
        self.model.write(self.next_model(self._mean))
        if self._resets_optimizer:
            reset_optimizer(self.optimizer)

    def next_model(self, mean: Vector) -> Vector:
        """Return the model from which all workers continue after an average; here the mean."""
        return mean
