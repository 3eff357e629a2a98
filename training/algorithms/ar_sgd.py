"""AR-SGD: averages gradients over all workers by an all-reduce at every step.

Source: Migliorini 2020, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Worker
from training.algorithms.method import MethodSettings, Traits, algorithm


class ArSgdSettings(MethodSettings):
    """Average gradients over all workers at every step."""

    name: Literal["ar-sgd"]

    COUNTERS: ClassVar[tuple[str, ...]] = ("averages",)


@algorithm("ar-sgd", ArSgdSettings, Traits(title="AR-SGD", exact_average=True, linear_rate=True))
class ArSgd(Algorithm):
    """Step with the mean gradient of all samples: x <- x - gamma * sum_i n_i g_i / sum_i n_i.

    x is the model, equal on all workers, and gamma the learning rate. g_i is the mean gradient of
    worker i over its n_i samples. With these weights, uneven batches are right too: the average is
    the gradient of one batch of all samples. A worker with a gradient that is not finite counts as
    one without samples.
    """

    SCRATCH = ("_message",)
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: ArSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        gradient = self.model.empty()
        # One message a step: the gradient, then the number of samples.
        self._message = np.empty(gradient.size + 1, dtype=gradient.dtype)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Sum gradients and numbers of samples over all workers, and step with the mean."""
        # A view: what is written to it is part of the message.
        gradient = self._message[:-1]
        if await self.has_gradient(compute_gradient, num_samples):
            self.model.read_gradient(gradient)
            gradient *= num_samples
            self._message[-1] = num_samples
        else:
            self._message.fill(0)
        await self.transport.all_reduce_sum(self._message)
        self.actions["averages"] += 1
        # The message now has the sums; without any sample there is no step.
        total_samples = self._message[-1]
        if total_samples:
            gradient /= total_samples
            self.model.write_gradient(gradient)
            self.optimizer.step()
