"""CHOCO-SGD: neighbours exchange compressed differences of their models.

Source: Koloskova, Stich, Jaggi 2019, Algorithm 2.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.d_psgd import NeighbourAlgorithm, NeighbourSettings
from training.algorithms.method import Traits, algorithm
from training.transports.basics import Vector, is_finite


class ChocoSgdSettings(NeighbourSettings):
    """Exchange compressed differences of the parameters with all neighbours at every step."""

    name: Literal["choco-sgd"]
    fraction: float = Field(default=0.1, gt=0, le=1)
    """Part of the parameters that travel, those of largest magnitude (top-k); above 0 and at most
    1."""
    gamma: float = Field(default=0.3, gt=0, le=1)
    """Step size of the consensus, above 0 and at most 1; the more stays behind, the smaller."""

    @override
    def smallest_message(self, workers: int) -> float:
        return self.fraction


def compress(values: Vector, fraction: float) -> Vector:
    """Return a message with the elements of largest magnitude of a vector.

    `fraction`: part of the elements to send; at least one element is sent.

    Returns:
        (num_bytes,) uint8: the ascending indices as int32, then the values in their own type.
    """
    num_sent = max(1, math.ceil(fraction * values.size))
    num_dropped = values.size - num_sent
    if num_dropped:
        # A partition is enough: it brings the largest to the end without sorting them.
        largest = np.argpartition(np.abs(values), num_dropped)[num_dropped:]
        indices = np.sort(largest)
    else:
        indices = np.arange(values.size)
    index_bytes = indices.astype(np.int32).view(np.uint8)
    value_bytes = values[indices].view(np.uint8)
    return np.concatenate([index_bytes, value_bytes])


def expand(message: Vector, like: Vector) -> Vector:
    """Return Q(v), the vector that a message of `compress` stands for.

    Q(v) is v at its elements of largest magnitude, and 0 elsewhere.

    `message`: (num_bytes,) uint8, the result of `compress` for v. `like`: a vector of the size and
    type of v.

    Examples:
        >>> values = np.array([1, -3, 0, 2, -1], np.float32)
        >>> message = compress(values, 0.4)
        >>> message.nbytes, expand(message, values).tolist()
        (16, [0.0, -3.0, 0.0, 2.0, 0.0])
    """
    # Each element has an index of four bytes and a value.
    bytes_per_element = 4 + like.itemsize
    num_elements = message.size // bytes_per_element
    index_bytes, value_bytes = np.split(message, [4 * num_elements])
    expanded = np.zeros_like(like)
    expanded[index_bytes.view(np.int32)] = value_bytes.view(like.dtype)
    return expanded


@algorithm("choco-sgd", ChocoSgdSettings, Traits(title="CHOCO-SGD", needs_others=True))
class ChocoSgd(NeighbourAlgorithm):
    """Step, exchange compressed differences, and move towards the neighbours' public copies.

    y_i = x_i - eta g_i; h_j <- h_j + Q(y_j - h_j) for all j;
    x_i+ = y_i + gamma sum_j w_ij (h_j - h_i).

    x_i is the model of worker i before the step and x_i+ after it, g_i its gradient, eta the
    learning rate, w_ij the weights of the graph, and Q the compression.

    h_j is the public copy: what all neighbours know of worker j. So the error of the compression Q
    stays in the next difference. A worker keeps its own public copy h_i, and the mixed copies
    sum_j w_ij h_j. All h start as the first model of rank 0 instead of 0, since all workers start
    from it. With the fraction 1, gamma 1 makes it D-PSGD in this order of steps (adapt, then
    combine).

    Q is a contraction: |Q(v) - v|^2 <= (1 - fraction) |v|^2.

    A worker whose model is not finite sends the difference 0, and takes over the mean of its
    neighbours' public copies.
    """

    SCRATCH = ("_local",)
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: ChocoSgdSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._gamma = settings.gamma
        self._fraction = settings.fraction
        #: y_i, the model after the local step.
        self._local = self.model.empty()
        #: h_i, what the neighbours know of this model.
        self._public_copy = self.model.empty()
        #: sum_j w_ij h_j over this worker and its neighbours.
        self._mixed_copies = self.model.empty()

    @override
    async def start(self) -> None:
        """Set all copies to the model of rank 0, from which all workers start."""
        self.model.read(self._local)
        await self.transport.broadcast(self._local)
        self._public_copy[:] = self._local
        self._mixed_copies[:] = self._local

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a local step, exchange compressed differences, and take the consensus step."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        self.model.read(self._local)
        model_is_finite = is_finite(self._local)

        # What the neighbours do not know of this model yet; a broken model tells them nothing.
        difference = self._local - self._public_copy
        if not model_is_finite:
            difference.fill(0)
        message = compress(difference, self._fraction)
        exchange = self.begin_exchange(message)

        # The neighbours change their copies of this model in the same way.
        own_weight, *neighbour_weights = self.weights
        own_change = expand(message, self._public_copy)
        self._public_copy += own_change
        self._mixed_copies += own_weight * own_change
        for weight, neighbour_message in zip(neighbour_weights, await exchange, strict=True):
            self._mixed_copies += weight * expand(neighbour_message, self._public_copy)

        if model_is_finite:
            consensus_step = self._gamma * (self._mixed_copies - self._public_copy)
            self.model.write(self._local + consensus_step)
        elif self.neighbours:
            # This is the mean of the neighbours' public copies by their weights.
            neighbour_sum = self._mixed_copies - own_weight * self._public_copy
            self.model.write(neighbour_sum / sum(neighbour_weights))
