"""The joint model of MPCA SGD on every worker: sums of shards in turn, and the driver's rule on each of them."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import Field

from hep_core.settings_section import SettingsSection
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import Layout
from training.transports.transport import PendingSum, Transport

#: The operations on a shard follow each other: reduce, prepare, broadcast. More shards leave nothing to overlap.
MOST_SHARDS: Final = 3


class MpcaConstants(SettingsSection):
    """The constants of the rules with the values of the paper (sections 4.3, 4.5, 6.3, 7.1).

    The paper gives no lengths of the ramps of `alpha` and `gamma`.
    """

    alpha: float = Field(default=0.05, gt=0, le=1)
    """Strength of the pull at every step, above 0 and at most 1."""
    alpha_peak: float = Field(default=0.5, gt=0, le=1)
    """Strength of the pull after the cycles without one."""
    alpha_free: int = Field(default=2, ge=0)
    """Number of exchanges of the whole model before the pull begins."""
    alpha_ramp: int = Field(default=20, ge=0)
    """Number of exchanges in which the pull falls from `alpha_peak` to `alpha`."""
    beta: float = Field(default=0.9, gt=0, le=1)
    """Share of the average in the next joint model, above 0 and at most 1."""
    beta_ramp: int = Field(default=20, ge=0)
    """Number of exchanges in which this share falls from 1 to `beta`."""
    gamma: float = Field(default=0.7, ge=0)
    """Length of the projection ahead, in exchanges; 0 for none."""
    gamma_ramp: int = Field(default=20, ge=0)
    """Number of exchanges in which the projection grows from 0 to `gamma`."""
    delta: float = Field(default=0.8, ge=0, lt=1)
    """Smoothing of the direction of the projection, at least 0 and below 1."""

    def alpha_at(self, cycle: int) -> float:
        """The pull after a number of cycles of the joint model: none, then the peak, then down to `alpha`.

        Examples:
            >>> [round(MpcaConstants(alpha=0.125, alpha_ramp=2).alpha_at(cycle), 3) for cycle in (0, 1, 2, 3, 4, 9)]
            [0.0, 0.0, 0.5, 0.25, 0.125, 0.125]
        """
        if cycle < self.alpha_free:
            return 0.0
        strength: float = (self.alpha / self.alpha_peak) ** _share(
            cycle - self.alpha_free, self.alpha_ramp
        )
        return self.alpha_peak * strength

    def beta_at(self, cycle: int) -> float:
        """The replacement rate of a cycle: from 1 to `beta` by a constant factor.

        Examples:
            >>> [round(MpcaConstants().beta_at(cycle), 3) for cycle in (0, 10, 20, 30)]
            [1.0, 0.949, 0.9, 0.9]
        """
        rate: float = self.beta ** _share(cycle, self.beta_ramp)
        return rate

    def gamma_at(self, cycle: int) -> float:
        """The length of the projection after a cycle: from 0 to `gamma` by equal amounts.

        Examples:
            >>> [round(MpcaConstants().gamma_at(cycle), 3) for cycle in (0, 10, 20, 30)]
            [0.0, 0.35, 0.7, 0.7]
        """
        return self.gamma * _share(cycle, self.gamma_ramp)


class JointShard(NamedTuple):
    """A shard of the joint model."""

    model: Vector
    """x~, the joint model itself: the basis of the trajectory, never sent."""
    trajectory: Vector
    """v~, the moving average of its change in a cycle."""
    projected: Vector
    """x~*, the joint model ahead of its time: what workers get."""
    cycle: int
    """Number of its cycles so far."""

    @classmethod
    def at_start(cls, model: Vector) -> JointShard:
        """A shard before its first cycle: v~ is 0."""
        return cls(model.copy(), np.zeros_like(model), model.copy(), 0)


def contribution(local: Vector, steps: int, *, weighted: bool = True) -> Vector:
    """What a worker adds to the sum of a cycle: tau_i x_i, then tau_i (equation 9).

    A worker without a step since its last contribution, or with a shard that is not finite, adds nothing.

    `local`: (n,) the worker's shard. `weighted`: whether tau_i is the weight; else all workers with steps have the
    weight 1.

    Returns:
        (n + 1,) of the same type.
    """
    message = np.zeros(local.size + 1, local.dtype)
    if steps and is_finite(local):
        message[-1] = steps if weighted else 1
        np.multiply(local, message[-1], out=message[:-1])
    return message


def driver_rule(shard: JointShard, total: Vector, constants: MpcaConstants) -> JointShard:
    """The driver's rule of a cycle: equations 9, 8, 4 and 5; the same shard if nobody contributed.

    `total`: (n + 1,) sum of the workers' contributions.
    """
    if not total[-1]:
        return shard
    beta, gamma, delta = (
        constants.beta_at(shard.cycle),
        constants.gamma_at(shard.cycle),
        constants.delta,
    )
    # R = sum_i tau_i x_i / sum_i tau_i (equation 9).
    aggregated = total[:-1] / total[-1]
    # x~_t = (1 - beta) x~_{t-1} + beta R (equation 8).
    model = (1 - beta) * shard.model + beta * aggregated
    # v~_t = delta v~_{t-1} + (1 - delta) (x~_t - x~_{t-1}) (equation 4); from joint models, not projections.
    trajectory = delta * shard.trajectory + (1 - delta) * (model - shard.model)
    # x~*_{t + gamma} = x~_t + gamma v~_t (equation 5).
    return JointShard(model, trajectory, model + gamma * trajectory, shard.cycle + 1)


def _share(done: int, length: int) -> float:
    """The share of a ramp that is done."""
    return min(1.0, done / length) if length else 1.0


#: Elements of a message behind the contribution: workers without more steps, squared distances from the joint model.
_ENDED, _DISTANCE = -2, -1


class JointModel:
    """One worker's replica of the joint model, and the sum that is under way, of one shard at a time.

    All workers apply the driver's rule to the same sums, so their replicas are equal without a driver's broadcast.
    Cycle c adds up shard c mod S. A worker begins a cycle only after the one before has ended, which all had begun: two
    workers are never more than one cycle apart.
    """

    def __init__(
        self,
        transport: Transport,
        model: Vector,
        *,
        shards: int,
        constants: MpcaConstants,
        weighted: bool,
    ) -> None:
        self._transport = transport
        self._slices = Layout(model.size, shards).parts
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
        """Begin the sum of the shard whose turn it is; returns the worker's steps since its last contribution."""
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
            "vectors": np.stack(
                [np.concatenate([shard[field] for shard in self._shards]) for field in range(3)]
            ),
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
        (model, trajectory, projected), (self.sums, *cycles) = (
            state["vectors"],
            state["numbers"].tolist(),
        )
        self._shards = [
            JointShard(model[part].copy(), trajectory[part].copy(), projected[part].copy(), cycle)
            for part, cycle in zip(self._slices, cycles, strict=True)
        ]
        self._squares[:], self.steps[:] = state["squares"], state["steps"]
        self.projected[:] = projected
        self._message = state["arrived"]
