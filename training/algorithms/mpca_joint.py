"""The joint model of MPCA SGD on every worker: sums of shards in turn, and the driver's rule on each of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from training.algorithms.mpca_rules import JointShard, MpcaConstants, contribution, driver_rule
from training.transports.basics import Vector, is_finite
from training.transports.shards import shard_slices
from training.transports.transport import PendingSum, Transport

#: Elements of a message behind the contribution: workers without more steps, squared distances from the joint model.
_ENDED, _DISTANCE = -2, -1


class JointModel:
    """One worker's replica of the joint model, and the sum that is under way, of one shard at a time.

    All workers apply the driver's rule to the same sums, so their replicas are equal without a driver's broadcast.
    Cycle c adds up shard c mod S. A worker begins a cycle only after the one before has ended, which all had begun: two
    workers are never more than one cycle apart.

    Args:
        transport: The other workers.
        model: Initial joint model, the same on all workers.
        shards: Number S of shards.
        constants: MpcaConstants of the driver's rule.
        weighted: Whether contributions count by their steps.
    """

    def __init__(
        self, transport: Transport, model: Vector, *, shards: int, constants: MpcaConstants, weighted: bool
    ) -> None:
        self._transport = transport
        self._slices = shard_slices(model.size, shards)
        self._shards = [JointShard.at_start(model[part]) for part in self._slices]
        self._constants, self._weighted = constants, weighted
        self._squares = np.zeros(shards)
        #: The sum under way, its message and the steps that this worker contributed; no sum once it is there.
        self._pending: PendingSum | None = None
        self._message: Vector | None = None
        self._sent = 0
        self.projected = model.copy()
        """The newest projections of all shards, which pull the workers."""
        self.sums = 0
        """Number of sums so far."""
        self.steps = np.zeros(shards, np.int64)
        """tau_i of each shard: the worker's steps since its last contribution."""

    @property
    def cycles(self) -> int:
        """Number of cycles that all shards have been through."""
        return min(shard.cycle for shard in self._shards)

    @property
    def is_under_way(self) -> bool:
        """Whether this worker has begun a sum that it has not finished."""
        return self._message is not None

    @property
    def is_done(self) -> bool:
        """Whether the sum under way is there."""
        return self._pending is None or self._pending.is_done()

    @property
    def part(self) -> slice:
        """The shard whose turn it is."""
        return self._slices[self.sums % len(self._slices)]

    def begin(self, local: Vector, *, ending: bool) -> int:
        """Begin the sum of the shard whose turn it is; returns the worker's steps since its last contribution.

        Args:
            local: The worker's model.
            ending: Whether the worker takes no more steps.
        """
        turn = self.sums % len(self._slices)
        own, self._sent = local[self.part], int(self.steps[turn])
        message = np.zeros(own.size + 3, local.dtype)
        message[:_ENDED] = contribution(own, self._sent, weighted=self._weighted)
        if is_finite(own):
            message[_DISTANCE] = np.square(own - self._shards[turn].model).sum()
        self.steps[turn] = 0
        message[_ENDED] = ending and not self.steps.any()
        self._pending, self._message = self._transport.begin_all_reduce(message), message
        return self._sent

    async def arrive(self) -> None:
        """Wait for the sum under way, if there is one, without taking it over."""
        if self._pending is not None:
            await self._pending
            self._pending = None

    async def finish(self) -> bool:
        """Wait for the sum, and apply the driver's rule; returns whether no worker has more steps to contribute."""
        await self.arrive()
        message, self._message = self._message, None
        if message is None:
            raise AssertionError("no sum is under way")
        turn, part = self.sums % len(self._slices), self.part
        self._shards[turn] = driver_rule(self._shards[turn], message[:_ENDED], self._constants)
        self.projected[part] = self._shards[turn].projected
        self._squares[turn] = message[_DISTANCE]
        self.sums += 1
        return bool(message[_ENDED] == self._transport.world_size)

    def read(self, out: Vector) -> float:
        """Copy the joint model; returns the workers' distance from it, each shard at its last sum."""
        np.concatenate([shard.model for shard in self._shards], out=out)
        return math.sqrt(self._squares.sum() / self._transport.world_size)

    def state(self) -> dict[str, Any]:
        """All of it; the contribution to a sum that is not there yet counts as not made."""
        steps = self.steps.copy()
        if self._pending is not None:
            steps[self.sums % len(steps)] += self._sent
        arrived = self._message if self._pending is None else None
        return {
            "vectors": np.stack([np.concatenate([shard[field] for shard in self._shards]) for field in range(3)]),
            "numbers": np.array([self.sums, *(shard.cycle for shard in self._shards)]),
            "squares": self._squares.copy(),
            "steps": steps,
            "arrived": None if arrived is None else arrived.copy(),
        }

    async def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave; all workers together.

        With work units, the workers' checkpoints may be some cycles apart: the joint model of rank 0 holds.
        """
        for each in (state["vectors"], state["numbers"], state["squares"]):
            await self._transport.broadcast(each)
        (model, trajectory, projected), (self.sums, *cycles) = state["vectors"], state["numbers"].tolist()
        self._shards = [
            JointShard(model[part].copy(), trajectory[part].copy(), projected[part].copy(), cycle)
            for part, cycle in zip(self._slices, cycles, strict=True)
        ]
        self._squares[:], self.steps[:] = state["squares"], state["steps"]
        self.projected[:] = projected
        self._message = state["arrived"]
