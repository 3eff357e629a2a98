"""What all algorithms share."""

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
from training.transports.transport import AverageCounts, Transport, Vector

ComputeGradient = Callable[[], Awaitable[None]]
"""Fills the model's gradient with that of the mean loss over the local batch, at the model's parameters."""


@dataclass
class StepCounts:
    """What happened to the steps of one worker."""

    skipped: int = 0
    """Steps without an update, since the gradient was not finite."""
    staleness: Counter[int] = field(default_factory=Counter)
    """How many updates saw how many averages between reading the model and changing it."""


class Algorithm(ABC):
    """Turns local gradients into updates of the local model, talking to other workers through a transport.

    Args:
        model: The local model.
        optimizer: The base optimiser over `model.flat`.
        transport: The other workers.
    """

    #: Whether all workers take each step together, so that the run is the same whatever the timing.
    synchronous: bool = True

    def __init__(self, model: VectorModel, optimizer: Optimizer, transport: Transport) -> None:
        self.model = model
        self.optimizer = optimizer
        self.transport = transport
        self.counts = StepCounts()

    async def start(self) -> None:  # noqa: B027 - most have nothing to share
        """Share what is to be shared; all workers together, before the first step."""

    @abstractmethod
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take one step.

        Args:
            compute_gradient: Fills the model's gradient.
            num_samples: Size of the local batch; 0 where a worker has run out of data, it then has no gradient.
        """

    async def current(self, out: Vector) -> None:
        """Copy this worker's present model, with everything that it or its partners did to it, into `out`."""
        self.model.read(out)

    async def published(self, out: Vector) -> None:
        """Copy what partners see of the model into `out`: what a restarted worker must have before `start`."""
        self.model.read(out)

    async def add(self, change: Vector) -> None:
        """Add to this worker's present model, losing nothing that partners do meanwhile."""
        present = self.model.empty()
        self.model.read(present)
        present += change
        self.model.write(present)

    async def quiesce(self) -> None:
        """Return when no worker averages any more, until the next step of any; all workers together."""
        await self.transport.barrier()

    async def close(self) -> None:  # noqa: B027 - likewise
        """Give back what was shared; all workers together."""

    @property
    def average_counts(self) -> AverageCounts:
        """Pairwise averages so far."""
        return AverageCounts()

    def state(self) -> dict[str, Any]:
        """What the next steps hang on beside the published model and the optimiser; tensors and plain values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - likewise
        """Take over what `state` gave, after `start`."""

    async def has_gradient(self, compute_gradient: ComputeGradient, num_samples: int) -> bool:
        """Compute the gradient; False, and counted, if it is not finite: it must not reach the other workers."""
        if not num_samples:
            return False
        await compute_gradient()
        if self.model.gradient_is_finite():
            return True
        self.counts.skipped += 1
        return False


async def mean_over_workers(vector: Vector, transport: Transport) -> None:
    """Replace a vector by its mean over all workers, in place."""
    await transport.all_reduce_sum(vector)
    vector /= transport.world_size


async def treat_optimizer(optimizer: Optimizer, policy: StatePolicy, transport: Transport) -> None:
    """Do to the optimiser's state what the policy says, after an exact average of the models."""
    if transport.world_size > 1 or policy is StatePolicy.RESET:
        await treat_state(optimizer, policy, lambda vector: mean_over_workers(vector, transport))


def subtract(left: Vector, right: Vector, *, out: Vector) -> Vector:
    """Left - right into `out`."""
    return np.subtract(left, right, out=out)
