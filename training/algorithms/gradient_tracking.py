"""Gradient tracking: steps along a running estimate of the mean gradient of all workers.

Source: Koloskova, Lin, Stich 2021 (DSGT); Takezawa et al. 2023, Algorithm 1 (momentum tracking).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.d_psgd import NeighbourAlgorithm, NeighbourSettings, mix
from training.algorithms.method import Traits, algorithm
from training.transports.basics import Vector


class GradientTrackingSettings(NeighbourSettings):
    """Step along the tracked mean gradient of all workers, then average with all neighbours."""

    name: Literal["gradient-tracking"]
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Momentum factor, at least 0 and below 1; 0 is DSGT. The optimizer is `sgd` without momentum
    of its own."""


@algorithm(
    "gradient-tracking",
    GradientTrackingSettings,
    Traits(title="Gradient tracking", own_momentum=True, plain_sgd=True),
)
class GradientTracking(NeighbourAlgorithm):
    """Step along the tracking vector, then mix models and tracking vectors of neighbours.

    u_i <- beta u_i + g_i; y_i = u_i - c_i; x_i <- sum_j w_ij (x_j - eta y_j);
    c_i <- u_i - sum_j w_ij y_j.

    x_i is the model of worker i, g_i its gradient, u_i its momentum, eta the learning rate, and
    w_ij a weight of the graph. The tracking vector y_i estimates the mean momentum of all workers,
    and the correction c_i is the part of u_i that the others do not share. So worker i moves in the
    direction of all workers where their data differ. u and c begin at 0.

    With beta 0 the method is DSGT, whose rule y_i <- sum_j w_ij y_j + g_i(new) - g_i(old) follows
    by inserting c. On the complete graph all models are equal, and follow SGD with momentum beta
    and the mean gradient. Both halves of a message, x_j - eta y_j and y_j, travel together after
    the gradient: twice the bytes of D-PSGD. Weight decay is no part of what is tracked.

    A step without a gradient has g_i = 0, and follows y_i like all others. Only finite gradients
    enter u, y and c. So the sum of all c stays 0, and the mean of all y is that of all u, also
    while a model is not finite; its worker takes over the mean model of its neighbours.
    """

    SCRATCH = ("_gradient", "_message", "_mixed")
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: GradientTrackingSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._beta = settings.beta
        #: g_i.
        self._gradient = self.model.empty()
        #: x_i - eta y_i, then y_i.
        self._message = np.concatenate([self._gradient, self._gradient])
        #: The mean model of this worker and its neighbours.
        self._mixed = self.model.empty()
        #: u_i.
        self._momentum = self.model.empty()
        self._momentum.fill(0)
        #: c_i.
        self._correction = self.model.empty()
        self._correction.fill(0)
        # A correction is for a momentum of its size, so both restart together. Without momentum
        # there is nothing to restart.
        if self._beta:
            self.momenta = (self._momentum, self._correction)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Update the momentum, step along the tracking vector, and mix with the neighbours."""
        self._momentum *= self._beta
        if await self.has_gradient(compute_gradient, num_samples):
            self.model.read_gradient(self._gradient)
            self._momentum += self._gradient
        self._step_along_tracking_vector()
        neighbour_messages = await self.begin_exchange(self._message)
        self._mix([self._message, *neighbour_messages])

    def _step_along_tracking_vector(self) -> None:
        """Write y_i into the message, step along it, and write the model into the message."""
        # Both are views: what is written to them is part of the message.
        stepped_model, tracking_vector = np.split(self._message, 2)
        np.subtract(self._momentum, self._correction, out=tracking_vector)
        self.model.write_gradient(tracking_vector)
        self.optimizer.step()
        self.model.read(stepped_model)

    def _mix(self, messages: Sequence[Vector]) -> None:
        """Mix the models of this worker and its neighbours, and set c_i to u_i - sum_j w_ij y_j.

        `messages`: of this worker, then of its neighbours.
        """
        stepped_models, tracking_vectors = [], []
        for message in messages:
            stepped_model, tracking_vector = np.split(message, 2)
            stepped_models.append(stepped_model)
            tracking_vectors.append(tracking_vector)
        if mix(self.weights, stepped_models, out=self._mixed):
            self.model.write(self._mixed)

        self._correction[:] = self._momentum
        for weight, tracking_vector in zip(self.weights, tracking_vectors, strict=True):
            self._correction -= weight * tracking_vector
