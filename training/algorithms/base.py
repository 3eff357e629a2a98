"""The base class of all algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.optim import Optimizer

from training.algorithms.optimizer_state import treat_state
from training.flat_model import VectorModel
from training.settings import StatePolicy
from training.transports.transport import AverageCounts, Transport, Vector, is_finite

ComputeGradient = Callable[[], Awaitable[None]]
"""Computes the gradient of the mean loss over the local batch, at the model's parameters, into the model."""


@dataclass
class StepCounts:
    """Counters of the steps of one worker."""

    skipped: int = 0
    """Number of steps without an update because the gradient or the update was not finite."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Number of updates by the number of averages between the read and the change of the model."""


class Algorithm(ABC):
    """Turns local gradients into updates of the local model; a transport connects it to the other workers.

    Args:
        model: The local model.
        optimizer: The base optimiser over `model.flat`.
        transport: The other workers.
    """

    #: Whether all workers take each step together, so that the run does not depend on timing.
    synchronous: bool = True
    #: Whether all workers must take the same number of steps, since they meet now and then.
    equal_steps: bool = True

    def __init__(self, model: VectorModel, optimizer: Optimizer, transport: Transport) -> None:
        self.model = model
        self.optimizer = optimizer
        self.transport = transport
        self.counts = StepCounts()

    async def start(self) -> None:  # noqa: B027 - most have nothing to share
        """Share vectors with the other workers; all workers together, before the first step."""

    @abstractmethod
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take one step.

        Args:
            compute_gradient: Fills the model's gradient.
            num_samples: Size of the local batch; 0 if the worker has no data left and thus no gradient.
        """

    async def current(self, out: Vector) -> None:
        """Copy this worker's current model, with all changes by it and its partners, into `out`."""
        self.model.read(out)

    async def published(self, out: Vector) -> None:
        """Copy the partners' view of the model into `out`; a restarted worker must load it before `start`."""
        self.model.read(out)

    async def add(self, change: Vector) -> None:
        """Add to this worker's current model, and keep all concurrent changes by partners."""
        present = self.model.empty()
        self.model.read(present)
        present += change
        self.model.write(present)

    async def snapshot(self, out: Vector) -> float:  # noqa: ARG002 - most share nothing
        """Copy the mean of the vectors that all workers share into `out`, without stopping anyone.

        Returns:
            The consensus distance of these vectors; see `consensus_distance`.
        """
        raise AssertionError(f"workers of {type(self).__name__} share no vectors")

    async def quiesce(self) -> None:
        """Wait until no worker averages; none begins an average before its next step. All workers together."""
        await self.transport.barrier()

    async def close(self) -> None:  # noqa: B027 - likewise
        """Release the shared vectors; all workers together."""

    @property
    def average_counts(self) -> AverageCounts:
        """Counters of the pairwise averages so far."""
        return AverageCounts()

    def state(self) -> dict[str, Any]:
        """State of the next steps in addition to the published model and the optimiser; tensors and plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - likewise
        """Restore the content of `state`, after `start`."""

    async def has_gradient(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Compute the gradient. False if it is not finite: such a step is counted and does not reach other workers."""
        if not num_samples:
            return False
        await compute_gradient()
        if self.model.gradient_is_finite():
            return True
        self.counts.skipped += 1
        return False


async def mean_over_workers(vector: Vector, transport: Transport) -> None:
    """Replace a vector by its mean over the workers whose vector is finite, in place; NaN if there are none."""
    message = np.zeros(vector.size + 1, dtype=vector.dtype)
    if is_finite(vector):
        message[:-1] = vector
        message[-1] = 1
    await transport.all_reduce_sum(message)
    with np.errstate(invalid="ignore"):
        np.divide(message[:-1], message[-1], out=vector)


async def consensus_distance(own: Vector, mean: Vector, transport: Transport) -> float:
    """sqrt(1/m sum_i |x_i - mean|^2), the distance of the workers from consensus (Kong et al. 2021, equation 2).

    The thesis' Gamma_t (section 2.3) is m times its square.
    """
    square = np.array([np.square(own.astype(np.float64) - mean).sum()])
    await transport.all_reduce_sum(square)
    return float(np.sqrt(square[0] / transport.world_size))


async def treat_optimizer(optimizer: Optimizer, policy: StatePolicy, transport: Transport) -> None:
    """Apply the policy to the optimiser's state, after an exact average of the models."""
    if transport.world_size > 1 or policy is StatePolicy.RESET:
        await treat_state(optimizer, policy, lambda vector: mean_over_workers(vector, transport))


def subtract(left: Vector, right: Vector, *, out: Vector) -> Vector:
    """Left - right into `out`."""
    return np.subtract(left, right, out=out)
