"""LocalSGD: H local steps, then an average of the parameters by an all-reduce (Lin et al. 2018; thesis, 2.1)."""

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


class LocalSgdSettings(MethodSettings):
    """Average parameters over all workers after some local steps."""

    name: Literal["local-sgd"]
    local_steps: int = Field(default=3, ge=1)
    """Number H of local steps between two averages, at least 1."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("averages",)


@algorithm(
    "local-sgd",
    LocalSgdSettings,
    Traits(title="LocalSGD", exact_average=True, averages_models=True, needs_others=True),
)
class LocalSgd(Algorithm):
    """x_i <- x_i - gamma * g_i, H times, then x_i <- sum_j x_j / m."""

    SCRATCH: ClassVar[Sequence[str]] = ("_vector",)

    def __init__(self, settings: LocalSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._local_steps = settings.local_steps
        # SlowMo's default policy applies to its outer steps only; the averages in between have their own.
        self._resets = worker.optimizer_state is StatePolicy.RESET
        self._done = 0
        self._vector = self.model.empty()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self._done += 1
        if self._done == self._local_steps:
            self._done = 0
            self.model.read(self._vector)
            await mean_over_workers(self._vector, self.transport)
            self.acted["averages"] += 1
            self.model.write(self.after(self._vector))
            if self._resets:
                reset_optimizer(self.optimizer)

    def after(self, mean: Vector) -> Vector:
        """The model of all workers after an average."""
        return mean
