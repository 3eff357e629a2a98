"""EAMSGD: elastic averaging with Nesterov momentum of the workers.

Source: Zhang et al. 2015, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.easgd import ElasticAlgorithm, ElasticSettings
from training.algorithms.method import algorithm
from training.algorithms.server import server_traits


class EamsgdSettings(ElasticSettings):
    """Elastic averaging of workers with Nesterov momentum; the server has none."""

    name: Literal["eamsgd"]
    delta: float = Field(default=0.99, ge=0, lt=1)
    """Momentum of the workers, at least 0 and below 1, in place of `train.momentum`, which must be
    0."""


@algorithm("eamsgd", EamsgdSettings, replace(server_traits("EAMSGD"), own_momentum=True))
class Eamsgd(ElasticAlgorithm):
    """Step with Nesterov momentum, beside the elastic exchange: v <- delta v + u; x <- x + v.

    v is the velocity of the worker's model x, and delta its momentum factor. u is the change by the
    base optimiser: -eta g(x + delta v) for SGD with the learning rate eta and the gradient g.
    """

    SCRATCH = ("_x",)
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: EamsgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._delta = settings.delta
        #: v.
        self._velocity = self.model.empty()
        self._velocity.fill(0)
        self.momenta = (self._velocity,)
        #: x before a local step.
        self._x = self.model.empty()

    @override
    async def local_step(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Step with Nesterov momentum; return False if there is no gradient, and so no step."""
        # The gradient is taken at x + delta v, and the model then set back to x.
        self.model.read(self._x)
        np.multiply(self._velocity, self._delta, out=self._change)
        self._change += self._x
        self.model.write(self._change)
        has_gradient = await self.has_gradient(compute_gradient, num_samples)
        self.model.write(self._x)
        if not has_gradient:
            return False

        # u is the change by the optimiser's step from x.
        self.optimizer.step()
        self.model.read(self._change)
        self._change -= self._x
        self._velocity *= self._delta
        self._velocity += self._change
        self._x += self._velocity
        self.model.write(self._x)
        return True
