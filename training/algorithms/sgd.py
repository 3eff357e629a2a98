"""Sequential training on one worker: mini-batch SGD (Migliorini 2020, equation 2.0.1)."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient
from training.algorithms.method import MethodSettings, Traits, algorithm


class SgdSettings(MethodSettings):
    """Sequential SGD on one worker."""

    name: Literal["sgd"]


@algorithm(
    "sgd", SgdSettings, Traits(title="SGD, one worker", single_worker=True, exact_average=True)
)
class Sgd(Algorithm):
    """Step on one worker: x <- x - gamma * gradient, or the update of another base optimiser.

    x is the model, and gamma the learning rate.
    """

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
