"""Push-sum: the base of methods whose workers send shares of a biased model and of its weight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from training.algorithms.base import Algorithm, ComputeGradient, Worker, mean_over_workers
from training.algorithms.method import HostNetworkSettings
from training.topology import exponential_distances
from training.transports.basics import Vector, is_finite


class PushSumSettings(HostNetworkSettings):
    """Settings of a method of push-sum."""

    peers: Literal[1, 2] = 1
    """Number of workers to which a worker sends at a step; 2 need at least 3 workers."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("messages",)

    @property
    @override
    def fewest_workers(self) -> Mapping[str, int]:
        return {"algorithm.peers: 2": 3} if self.peers == 2 else {}


class PushSum(Algorithm):
    """A worker with a biased model x and a weight w, whose model is z = x / w.

    A method defines how shares of x and w get to the peers.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_debiased", "_change")
    """Attributes that checkpoints leave out; both follow from the model."""

    def __init__(self, settings: PushSumSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.traits = settings.traits
        self._num_peers = settings.peers
        #: z in the model.
        self._debiased = self.model.empty()
        #: The optimiser's change of a step.
        self._change = self.model.empty()
        #: (num_parameters + 1,) x, then w.
        self._biased = np.ones(self._change.size + 1, self._change.dtype)
        self._num_exchanges = 0
        """Number of steps that have sent messages, or had nobody to send to."""

    @property
    def _weight(self) -> float:
        """The weight w."""
        weight: float = self._biased[-1]
        return weight

    @override
    async def start(self) -> None:
        """Begin with the model and weight 1."""
        self.model.read(self._debiased)
        self._biased[:-1] = self._debiased
        self._biased[-1] = 1

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take the optimiser's step, exchange shares, and de-bias."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
            self._add_change()
        await self._exchange()
        self._write_debiased()

    def _add_change(self) -> bool:
        """Add w times the change of z to x; one that is not finite is only counted.

        The change stays in `_change`. Returns whether it was added.
        """
        self.model.read(self._change)
        self._change -= self._debiased
        self._change *= self._weight
        if not is_finite(self._change):
            self.num_steps_not_finite += 1
            return False
        self._biased[:-1] += self._change
        return True

    @abstractmethod
    async def _exchange(self) -> None:
        """Send shares to the peers, and add those of other workers to the biased model."""

    def _receivers(self) -> list[int]:
        """Return the ranks to which this one sends next."""
        rank, world_size = self.transport.rank, self.transport.world_size
        return [(rank + distance) % world_size for distance in self._distances()]

    def _distances(self) -> list[int]:
        world_size = self.transport.world_size
        return exponential_distances(self._num_exchanges, world_size, self._num_peers)

    def _write_debiased(self) -> None:
        """Write z into the model."""
        self._debias(self._debiased)
        self.model.write(self._debiased)

    def _debias(self, out: Vector) -> None:
        """Write z into `out`."""
        np.divide(self._biased[:-1], self._weight, out=out)

    @override
    async def current(self, out: Vector) -> None:
        self._debias(out)

    @override
    async def flush(self) -> None:
        await self.quiesce()

    @override
    async def result(self, out: Vector) -> None:
        """Copy the sum of all x over that of all w; all workers together, after `flush`."""
        mean = self._biased.copy()
        await mean_over_workers(mean, self.transport)
        np.divide(mean[:-1], mean[-1], out=out)

    @override
    async def add(self, change: Vector) -> None:
        """Add a change to z: w times as much to x."""
        self._biased[:-1] += self._weight * change
        self._write_debiased()

    @override
    def weight_of(self, state: dict[str, Any]) -> float:
        """Return w, since the method returns the mean of all z with the weights w."""
        weight: float = state["weight"]
        return weight

    @override
    async def state(self) -> dict[str, Any]:
        return {**await super().state(), "weight": float(self._weight)}
