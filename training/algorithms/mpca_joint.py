"""The joint model of MPCA SGD on every worker: sums of shards in turn, and the driver's rule."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic import Field

from hep_core.settings_section import SettingsSection
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import Layout
from training.transports.transport import PendingSum, Transport

#: The operations on a shard follow each other: reduce, prepare, broadcast. More shards leave
#: nothing to overlap.
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
        """Return the pull after some cycles: 0, then the peak, then down to `alpha`.

        Examples:
            >>> constants = MpcaConstants(alpha=0.125, alpha_ramp=2)
            >>> [round(constants.alpha_at(cycle), 3) for cycle in (0, 1, 2, 3, 4, 9)]
            [0.0, 0.0, 0.5, 0.25, 0.125, 0.125]
        """
        if cycle < self.alpha_free:
            return 0.0
        fraction = _ramp_fraction(cycle - self.alpha_free, self.alpha_ramp)
        decay: float = (self.alpha / self.alpha_peak) ** fraction
        return self.alpha_peak * decay

    def beta_at(self, cycle: int) -> float:
        """Return the replacement rate of a cycle: from 1 to `beta` by a constant factor.

        Examples:
            >>> [round(MpcaConstants().beta_at(cycle), 3) for cycle in (0, 10, 20, 30)]
            [1.0, 0.949, 0.9, 0.9]
        """
        rate: float = self.beta ** _ramp_fraction(cycle, self.beta_ramp)
        return rate

    def gamma_at(self, cycle: int) -> float:
        """Return the length of the projection after a cycle: from 0 to `gamma` by equal amounts.

        Examples:
            >>> [round(MpcaConstants().gamma_at(cycle), 3) for cycle in (0, 10, 20, 30)]
            [0.0, 0.35, 0.7, 0.7]
        """
        return self.gamma * _ramp_fraction(cycle, self.gamma_ramp)


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
        """Return a shard before its first cycle, with a trajectory of 0.

        `model`: (n,) the elements of the start model; they are copied.
        """
        return cls(model.copy(), np.zeros_like(model), model.copy(), 0)


def contribution(local: Vector, steps: int, *, weighted: bool = True) -> Vector:
    """Return what a worker adds to the sum of a cycle: tau_i x_i, then tau_i (equation 9).

    x_i is the worker's shard, and tau_i its weight, `steps`. The sums of both give the weighted
    mean in one message. A worker without a step since its last contribution, or with a shard that
    is not finite, adds nothing.

    `local`: (n,) the worker's shard. `steps`: its steps since its last contribution. `weighted`:
    whether tau_i is this number; else it is 1 for all workers with steps.

    Returns:
        (n + 1,) of the same type.
    """
    message = np.zeros(local.size + 1, local.dtype)
    if steps and is_finite(local):
        tau = steps if weighted else 1
        message[-1] = tau
        # The weight is read back from the message, and so has the type of the model.
        np.multiply(local, message[-1], out=message[:-1])
    return message


def driver_rule(shard: JointShard, total: Vector, constants: MpcaConstants) -> JointShard:
    """Return a shard of the joint model after a cycle, by the rule of the driver in the paper.

    The weighted mean of the workers moves x~; v~ follows the change of x~; x~* lies ahead of x~
    along v~ (equations 9, 8, 4 and 5). If nobody contributed, the result is the shard itself.

    `total`: (n + 1,) sum of the workers' contributions, the sum of their weights last.
    """
    if not total[-1]:
        return shard
    beta = constants.beta_at(shard.cycle)
    gamma = constants.gamma_at(shard.cycle)
    delta = constants.delta
    # R = sum_i tau_i x_i / sum_i tau_i (equation 9).
    aggregated = total[:-1] / total[-1]
    # x~_t = (1 - beta) x~_{t-1} + beta R (equation 8).
    model = (1 - beta) * shard.model + beta * aggregated
    # v~_t = delta v~_{t-1} + (1 - delta) (x~_t - x~_{t-1}) (equation 4); of models, not
    # projections.
    trajectory = delta * shard.trajectory + (1 - delta) * (model - shard.model)
    # x~*_{t + gamma} = x~_t + gamma v~_t (equation 5).
    projected = model + gamma * trajectory
    return JointShard(model, trajectory, projected, shard.cycle + 1)


def _ramp_fraction(cycle: int, length: int) -> float:
    """Return the fraction of a ramp of some cycles that lies before a cycle, from 0 to 1."""
    # A ramp without length is over from the start.
    if not length:
        return 1.0
    return min(1.0, cycle / length)


#: Elements of a message behind the contribution: first the number of workers without more steps,
#: then the sum over all workers of their squared distances from the joint model.
_NUM_ENDED, _DISTANCE = -2, -1


class JointModel:
    """One worker's replica of the joint model, and the sum of one shard that is under way.

    The vector is divided into S shards. A cycle adds up the workers' values of one shard: cycle c
    is for shard c mod S. All workers apply the driver's rule to the same sums, so their replicas
    are equal without a driver's broadcast. A worker begins a cycle only after the one before has
    ended, which all had begun: two workers are never more than one cycle apart.

    `model`: (num_parameters,) the start model, equal on all workers. `shards`: S. `weighted`:
    whether a worker's weight is its number of steps, else 1.
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
        self._slices = Layout(model.size, shards).slices
        self._shards = [JointShard.at_start(model[elements]) for elements in self._slices]
        self._constants = constants
        self._weighted = weighted
        self._squared_distances = np.zeros(shards)
        """Sum over the workers of their squared distance from each shard, at its last sum."""
        self._pending: PendingSum | None = None
        """The sum under way, until it has arrived."""
        self._message: Vector | None = None
        """(n + 3,) the message of this sum, which becomes the total, until `finish_sum` uses it."""
        self._contributed_steps = 0
        """Steps of this worker in the message."""
        self.projected = model.copy()
        """(num_parameters,) x~* of all shards, towards which the workers are pulled."""
        self.num_sums = 0
        """Number of sums so far."""
        self.steps = np.zeros(shards, np.int64)
        """(shards,) tau_i: the worker's steps since its last contribution to each shard."""

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
        """Whether the sum under way has arrived."""
        return self._pending is None or self._pending.is_done()

    @property
    def next_shard(self) -> int:
        """Number of the shard whose turn it is."""
        return self.num_sums % len(self._slices)

    @property
    def next_elements(self) -> slice:
        """The elements of the shard whose turn it is."""
        return self._slices[self.next_shard]

    def begin_sum(self, local: Vector, *, ending: bool) -> int:
        """Begin the sum of the shard whose turn it is, over all workers, in the background.

        `local`: (num_parameters,) the worker's model. `ending`: whether it takes no more steps.

        Returns:
            The worker's steps since its last contribution to this shard, which now count as sent.
        """
        index = self.next_shard
        local_shard = local[self.next_elements]
        self._contributed_steps = int(self.steps[index])
        self.steps[index] = 0
        # Steps that another shard still lacks keep the worker from ending.
        has_ended = ending and not self.steps.any()

        # (n + 3,): the contribution (n + 1,), whether the worker has ended, its squared distance.
        message = np.zeros(local_shard.size + 3, local.dtype)
        message[:_NUM_ENDED] = contribution(
            local_shard, self._contributed_steps, weighted=self._weighted
        )
        message[_NUM_ENDED] = has_ended
        if is_finite(local_shard):
            difference = local_shard - self._shards[index].model
            message[_DISTANCE] = np.square(difference).sum()
        self._message = message
        self._pending = self._transport.begin_all_reduce(message)
        return self._contributed_steps

    async def wait_for_sum(self) -> None:
        """Wait for the sum under way, if there is one; the joint model stays as it is."""
        if self._pending is not None:
            await self._pending
            self._pending = None

    async def finish_sum(self) -> bool:
        """Wait for the sum under way, and apply the driver's rule to its shard.

        Returns:
            Whether all workers have ended, with no steps left to contribute.
        """
        await self.wait_for_sum()
        message = self._message
        self._message = None
        if message is None:
            raise AssertionError("no sum is under way")
        index, elements = self.next_shard, self.next_elements
        shard = driver_rule(self._shards[index], message[:_NUM_ENDED], self._constants)
        self._shards[index] = shard
        self.projected[elements] = shard.projected
        self._squared_distances[index] = message[_DISTANCE]
        self.num_sums += 1
        return bool(message[_NUM_ENDED] == self._transport.world_size)

    def read(self, out: Vector) -> float:
        """Copy the joint model x~ into `out`, (num_parameters,).

        Returns the root mean square of the workers' distances from it, each shard at its last sum.
        """
        np.concatenate([shard.model for shard in self._shards], out=out)
        return math.sqrt(self._squared_distances.sum() / self._transport.world_size)

    def state(self) -> dict[str, Any]:
        """Return all values on which the next cycles depend, for a checkpoint.

        `vectors` is (3, num_parameters): x~, v~ and x~*. `counts` is the number of sums, then the
        cycles of each shard. `arrived` is the total of a sum that has arrived but is not used yet.
        A contribution to a sum that has not arrived counts as not made.
        """
        steps = self.steps.copy()
        arrived = None
        if self._pending is not None:
            steps[self.next_shard] += self._contributed_steps
        elif self._message is not None:
            arrived = self._message.copy()
        return {
            "vectors": np.stack(
                [
                    np.concatenate([shard.model for shard in self._shards]),
                    np.concatenate([shard.trajectory for shard in self._shards]),
                    np.concatenate([shard.projected for shard in self._shards]),
                ]
            ),
            "counts": np.array([self.num_sums, *(shard.cycle for shard in self._shards)]),
            "squared_distances": self._squared_distances.copy(),
            "steps": steps,
            "arrived": arrived,
        }

    async def restore(self, state: dict[str, Any]) -> None:
        """Continue from a result of `state`; all workers together.

        Workers that do not wait for each other may have checkpoints that are some cycles apart. So
        all take the joint model of rank 0, and their own `steps` and `arrived`.
        """
        for array in (state["vectors"], state["counts"], state["squared_distances"]):
            await self._transport.broadcast(array)
        models, trajectories, projections = state["vectors"]
        self.num_sums, *cycles = state["counts"].tolist()
        self._shards = [
            JointShard(
                models[elements].copy(),
                trajectories[elements].copy(),
                projections[elements].copy(),
                cycle,
            )
            for elements, cycle in zip(self._slices, cycles, strict=True)
        ]
        self._squared_distances[:] = state["squared_distances"]
        self.projected[:] = projections
        self.steps[:] = state["steps"]
        self._message = state["arrived"]
