"""MPCA SGD: all-reduces of shards in the background, whose projected average pulls the workers.

Source: Langer et al. 2018.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.base import Algorithm, ComputeGradient, Counters, Worker
from training.algorithms.method import (
    HostNetworkSettings,
    Traits,
    TransportOptions,
    algorithm,
)
from training.algorithms.mpca_joint import MOST_SHARDS, JointModel, MpcaConstants
from training.transports.basics import Vector, is_finite


class MpcaSettings(MpcaConstants, HostNetworkSettings):
    """Pull workers at every step towards the projected average, which travels in the background."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs("alpha_peak", "alpha_ramp above 0", lambda settings: settings.alpha_ramp > 0),
        Needs("beta_ramp", "beta below 1", lambda settings: settings.beta < 1),
        *(
            Needs(key, "gamma above 0, a projection", lambda settings: settings.gamma > 0)
            for key in ("gamma_ramp", "delta")
        ),
        Needs(
            "network",
            "cycle_steps: null, since else MPI carries all messages",
            lambda settings: not settings.is_fixed,
        ),
    )

    name: Literal["mpca"]
    shards: int = Field(default=MOST_SHARDS, ge=1, le=MOST_SHARDS)
    """Number of parts of the model, exchanged in turn."""
    weighted: bool = True
    """Whether a worker's weight in the average is the number of its steps since the last one, else
    1."""
    cycle_steps: int | None = Field(default=None, ge=1)
    """Number of steps between two exchanges; the worker then waits for the one before. Null: as
    many as one takes, so that nobody waits."""

    @property
    @override
    def transport_options(self) -> TransportOptions:
        # MPI carries the sums; the shared counts of events go over the network between hosts.
        return TransportOptions(background=True, network=self.network)

    @property
    def is_fixed(self) -> bool:
        """Whether exchanges come after fixed steps, so that the run does not depend on timing."""
        return self.cycle_steps is not None

    @property
    @override
    def traits(self) -> Traits:
        return replace(super().traits, synchronous=self.is_fixed, equal_steps=self.is_fixed)

    COUNTERS: ClassVar[tuple[str, ...]] = ("cycles", "pulls")


@algorithm(
    "mpca",
    MpcaSettings,
    Traits(title="MPCA SGD", synchronous=False, equal_steps=False, joint_model=True),
)
class Mpca(Algorithm):
    """Pull each worker towards the joint model at every step; meanwhile a sum updates that model.

    x_i <- x_i - alpha (x_i - x~*), then the optimiser's step; x~ <- (1 - beta) x~ + beta
    mean_tau(x_i).

    x_i is the model of worker i. mean_tau is the mean over the workers, weighted by their steps
    tau_i since their last contribution. x~* = x~ + gamma v~ is ahead of the joint model x~ along
    its trajectory v~ (equations 4 to 9, in `mpca_joint`).

    At the end of a step a worker sends a shard if it has the result of the one
    before; else it takes the next step with the x~* that it has. So nobody waits, and an exchange
    takes as long as the slowest worker's step. The model of the method is x~.
    """

    SCRATCH = ("_local", "joint")
    """Attributes that checkpoints leave out; `state` adds the state of the joint model."""
    joint: JointModel
    """The joint model; from `start` on."""

    def __init__(self, settings: MpcaSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.traits = settings.traits
        self._settings = settings
        #: The local model, on the host.
        self._local = self.model.empty()
        self._steps_since_sum = 0
        """Number of steps since this worker began the last sum."""
        self._steps_per_cycle: Counter[int] = Counter()
        """Number of contributions by the number of steps tau_i in them, at least 1."""
        self._effective_steps = np.zeros(settings.shards)
        """(shards,) how many steps without a pull lead as far from the joint model as the steps
        since the last contribution: a pull by alpha leaves 1 - alpha of those before it. While the
        joint model stands still these are at most 1 / alpha, however long the next sum takes."""
        self._contributed_effective_steps = 0.0
        """Sum of them over all contributions."""
        self._staleness: Counter[int] = Counter()
        """Number of sums by the number of this worker's steps from their begin to their use."""

    @override
    async def start(self) -> None:
        """Make the joint model from the model of rank 0; all workers together."""
        self.model.read(self._local)
        await self.transport.broadcast(self._local)
        # Workers that take different numbers of steps share their counts of events.
        if not self._settings.is_fixed:
            await self.transport.open_counters()
        self.joint = JointModel(
            self.transport,
            self._local,
            shards=self._settings.shards,
            constants=self._settings,
            weighted=self._settings.weighted,
        )

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Move towards the projected joint model, take the optimiser's step, then exchange."""
        alpha = self._settings.alpha_at(self.joint.cycles)
        if alpha:
            self.actions["pulls"] += 1
            self.model.read(self._local)
            # Equation 7, before every gradient; the optimiser does not see it.
            self._local -= alpha * (self._local - self.joint.projected)
            self.model.write(self._local)
            self._effective_steps *= 1 - alpha
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
            self.joint.steps += 1
            self._effective_steps += 1
        await self._exchange()

    async def _exchange(self) -> None:
        """Finish the sum under way and begin the next one, unless it is too early.

        With fixed `cycle_steps` it is too early until that number of steps is over; then the
        worker waits for the sum. Else it is too early until the sum has arrived, so the worker
        never waits.
        """
        self._steps_since_sum += 1
        cycle_steps = self._settings.cycle_steps
        if cycle_steps is not None:
            is_too_early = self._steps_since_sum < cycle_steps
        else:
            is_too_early = self.joint.is_under_way and not self.joint.is_done
        if is_too_early:
            return
        if self.joint.is_under_way:
            await self._finish_sum()
        self._begin_sum()

    def _begin_sum(self, *, ending: bool = False) -> None:
        """Contribute the shard whose turn it is to a new sum.

        A local shard that is not finite contributes nothing, and is replaced by that of the
        projected joint model. `ending`: whether the worker takes no more steps.
        """
        index, elements = self.joint.next_shard, self.joint.next_elements
        self.model.read(self._local)
        steps = self.joint.begin_sum(self._local, ending=ending)
        if not is_finite(self._local[elements]):
            self._local[elements] = self.joint.projected[elements]
            self.model.write(self._local)
        self._steps_since_sum = 0
        if steps:
            self._steps_per_cycle[steps] += 1
            self._contributed_effective_steps += float(self._effective_steps[index])
            self._effective_steps[index] = 0

    async def _finish_sum(self) -> bool:
        """Wait for the sum under way, and update the joint model by it.

        Returns:
            Whether all workers have ended, with no steps left to contribute.
        """
        all_have_ended = await self.joint.finish_sum()
        self._staleness[self._steps_since_sum] += 1
        return all_have_ended

    @override
    async def quiesce(self) -> None:
        """Leave no sum under way; all workers together.

        With fixed `cycle_steps` all workers are at the same step: they wait for the sum, and use it
        when it is due. Else they are at different steps, and contribute all they have.
        """
        if self._settings.is_fixed:
            await self.joint.wait_for_sum()
        else:
            await self.flush()

    @override
    async def flush(self) -> None:
        """Contribute all steps, and take part in sums until no worker has more to contribute.

        Each sum also counts the workers that have nothing more. All see the same count, so all stop
        after the same sum, and none is under way then. Workers that still train need the others for
        their sums meanwhile. At the end the joint model has all steps.
        """
        all_have_ended = False
        while not all_have_ended:
            if not self.joint.is_under_way:
                self._begin_sum(ending=True)
            all_have_ended = await self._finish_sum()

    @override
    async def result(self, out: Vector) -> None:
        self.joint.read(out)

    @override
    async def snapshot(self, out: Vector) -> float:
        return self.joint.read(out)

    @override
    def counters(self) -> Counters:
        """Return the counts since the start; a cycle is the sum of one shard.

        A step is in a contribution to each shard, so the effective ones are a mean over the shards.
        """
        return {
            **super().counters(),
            "cycles": self.joint.num_sums,
            "effective_steps": self._contributed_effective_steps / self._settings.shards,
            "steps_per_cycle": self._steps_per_cycle.copy(),
            "staleness": self._staleness.copy(),
        }

    @override
    async def state(self) -> dict[str, Any]:
        return {**await super().state(), "joint": self.joint.state()}

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        await super().restore(state)
        await self.joint.restore(state["joint"])

    @override
    def model_of(self, state: dict[str, Any]) -> tuple[int, Vector]:
        """Return the number of sums, and the joint model x~."""
        joint = state["joint"]
        # The first count is the number of sums, the first vector x~; see `JointModel.state`.
        return int(joint["counts"][0]), joint["vectors"][0]
