"""LocalSGD: H local steps, then an average of the parameters by an all-reduce (Lin et al. 2018; thesis, 2.1)."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, mean_over_workers, treat_optimizer
from training.flat_model import VectorModel
from training.settings import StatePolicy
from training.transports.transport import Transport


class LocalSgd(Algorithm):
    """x_i <- x_i - gamma * g_i, H times, then x_i <- sum_j x_j / m.

    Args:
        model: See `Algorithm`.
        optimizer: See `Algorithm`.
        transport: See `Algorithm`.
        local_steps: Number H of local steps between averages.
        state_policy: Treatment of the optimiser's state at an average.
    """

    def __init__(
        self,
        model: VectorModel,
        optimizer: Optimizer,
        transport: Transport,
        *,
        local_steps: int,
        state_policy: StatePolicy,
    ) -> None:
        super().__init__(model, optimizer, transport)
        self._local_steps = local_steps
        self._policy = state_policy
        self._done = 0
        self._vector = model.empty()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self._done += 1
        if self._done == self._local_steps:
            self._done = 0
            self.model.read(self._vector)
            await mean_over_workers(self._vector, self.transport)
            self.model.write(self._vector)
            await treat_optimizer(self.optimizer, self._policy, self.transport)

    @override
    def state(self) -> dict[str, Any]:
        return {"done": self._done}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
