"""AR-SGD: averages gradients over all workers by an all-reduce at every step (Migliorini 2020, Algorithm 1)."""

from __future__ import annotations

import numpy as np
from torch.optim import Optimizer
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient
from training.flat_model import VectorModel
from training.transports.transport import Transport


class ArSgd(Algorithm):
    """x <- x - gamma * sum_i n_i g_i / sum_i n_i, where worker i has the gradient g_i over n_i samples.

    With weights by samples, uneven batches are right too: the average is the gradient of one batch of all samples. A
    worker with a gradient that is not finite counts as a worker without samples.
    """

    def __init__(self, model: VectorModel, optimizer: Optimizer, transport: Transport) -> None:
        super().__init__(model, optimizer, transport)
        gradient = model.empty()
        # One message per step: the gradient, then the number of samples.
        self._message = np.empty(gradient.size + 1, dtype=gradient.dtype)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        gradient = self._message[:-1]
        if await self.has_gradient(compute_gradient, num_samples):
            self.model.read_gradient(gradient)
            gradient *= num_samples
            self._message[-1] = num_samples
        else:
            self._message.fill(0)
        await self.transport.all_reduce_sum(self._message)
        if self._message[-1]:
            gradient /= self._message[-1]
            self.model.write_gradient(gradient)
            self.optimizer.step()
