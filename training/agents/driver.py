"""The driver of a run: exchange cycles with the agents, whose phases overlap (Langer et al. 2018, section 4.2).

In a cycle, the contributions to one shard of the joint model are reduced, the driver's rule prepares the next, and the
projection of a third is broadcast. The cycle ends when all three are done; the agents train meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from training.agents.crew import Cluster, Crew
from training.agents.ledger import Ledger
from training.agents.lifelines import AgentId
from training.agents.messages import Install, Reduced, Take
from training.algorithms.mpca_rules import JointModelSettings, JointShard, driver_rule, phases
from training.errors import CheckpointError
from training.settings import TrainSettings
from training.transports.basics import Vector
from training.transports.shards import shard_slices

_SECONDS_BETWEEN_LOOKS = 0.2


class Cycle(NamedTuple):
    """What happened in a cycle."""

    number: int
    shard: int | None
    """The shard that was reduced."""
    seconds: float
    reduce_seconds: float
    prepare_seconds: float
    broadcast_seconds: float
    bytes_reduced: int
    """Size of all contributions."""
    bytes_broadcast: int
    """Size of what all agents together received."""
    agents: int
    """Number of agents."""
    answers: int
    """Number of agents that answered."""
    steps: int
    """Number of their steps since the cycle before, added up."""


class Driver:
    """The joint model, and the cycles.

    Args:
        settings: Settings of the training; the algorithm has a joint model.
        start: Initial parameters.
        ledger: The accounts.
        crew: The agents.
        cluster: Runs the jobs.
    """

    def __init__(self, settings: TrainSettings, start: Vector, ledger: Ledger, crew: Crew, cluster: Cluster) -> None:
        method = cast("JointModelSettings", settings.algorithm)
        self._constants = method
        self._shards = [JointShard.at_start(start[where]) for where in shard_slices(start.size, method.shards)]
        self._totals: list[Vector | None] = [None] * method.shards
        self._ledger, self._crew, self._cluster = ledger, crew, cluster
        self.number = 0
        """Number of cycles so far."""

    @property
    def model(self) -> Vector:
        """A copy of the joint model."""
        return np.concatenate([shard.model for shard in self._shards])

    def run(self, on_cycle: Callable[[Cycle], None]) -> None:
        """Run cycles until all samples are used, and then until the joint model contains the last steps.

        Args:
            on_cycle: Called after each cycle.
        """
        left, has_begun = len(self._shards), False
        with ThreadPoolExecutor(2, thread_name_prefix="phase") as pool:
            while left:
                # All agents begin together; one that replaces another joins later.
                is_first_start = not self._crew.live or (not has_begun and not self._crew.is_complete)
                self._crew.review(
                    self._ledger.epoch, self._installs, seconds=_SECONDS_BETWEEN_LOOKS if is_first_start else 0.0
                )
                if is_first_start:
                    continue
                is_done, has_begun = self._ledger.is_done, True
                on_cycle(self._cycle(pool))
                left -= is_done

    def state(self) -> list[dict[str, Any]]:
        """The joint model with its trajectory, as a checkpoint holds it."""
        return [
            {"cycle": shard.cycle, **{name: torch.from_numpy(getattr(shard, name).copy()) for name in _VECTORS}}
            for shard in self._shards
        ]

    def load_state(self, state: Sequence[dict[str, Any]], number: int) -> None:
        """Continue from a joint model, after a number of cycles.

        Raises:
            CheckpointError: It has another number of shards than the settings.
        """
        if len(state) != len(self._shards):
            raise CheckpointError(
                f"the checkpoint has a joint model in {len(state)} shard(s), and train.algorithm.shards is "
                f"{len(self._shards)}. Set it to {len(state)}, or remove the checkpoint to begin anew."
            )
        self.number = number
        self._shards = [
            JointShard(**{name: shard[name].numpy().copy() for name in _VECTORS}, cycle=shard["cycle"])
            for shard in state
        ]

    def _cycle(self, pool: ThreadPoolExecutor) -> Cycle:
        """One cycle; its phases end together."""
        began, now = time.perf_counter(), phases(self.number, len(self._shards))
        live = sorted(self._crew.live)
        before = sum(self._ledger.totals(agent.partition)["steps"] for agent in live)
        reducing = None if now.reduce is None else pool.submit(_timed, self._reduce, now.reduce, live)
        sent_before = now.broadcast is not None and now.broadcast != now.prepare
        sending = pool.submit(_timed, self._broadcast, now.broadcast, live) if sent_before else None
        prepare_seconds = 0.0 if now.prepare is None else _timed(self._prepare, now.prepare)[1]
        if now.broadcast is not None and sending is None:
            sending = pool.submit(_timed, self._broadcast, now.broadcast, live)
        reached, broadcast_seconds = (0, 0.0) if sending is None else sending.result()
        reduced, reduce_seconds = (Reduced(), 0.0) if reducing is None else reducing.result()
        if now.reduce is not None:
            self._totals[now.reduce] = reduced.total
            self._crew.answered(live, reduced)
        number, self.number = self.number, self.number + 1
        size = 0 if reduced.total is None else reduced.total.nbytes
        return Cycle(
            number,
            now.reduce,
            time.perf_counter() - began,
            reduce_seconds,
            prepare_seconds,
            broadcast_seconds,
            bytes_reduced=size * len(reduced.accounts),
            bytes_broadcast=0 if now.broadcast is None else self._shards[now.broadcast].projected.nbytes * reached,
            agents=len(live),
            answers=len(reduced.accounts),
            steps=sum(self._ledger.totals(agent.partition)["steps"] for agent in live) - before,
        )

    def _reduce(self, shard: int, live: Sequence[AgentId]) -> Reduced:
        ledger = self._ledger
        ledger.grant()
        done, to_the_limit = ledger.used / ledger.rows, ledger.to_the_limit
        return self._cluster.reduce(
            {agent: Take(self.number, shard, ledger.limit(agent.partition), to_the_limit, done) for agent in live}
        )

    def _prepare(self, shard: int) -> None:
        total, self._totals[shard] = self._totals[shard], None
        if total is not None:
            self._shards[shard] = driver_rule(self._shards[shard], total, self._constants)

    def _broadcast(self, shard: int, live: Sequence[AgentId]) -> int:
        return self._cluster.install(live, self._install(shard))

    def _install(self, shard: int) -> Install:
        joint = self._shards[shard]
        return Install(shard, joint.projected, joint.cycle)

    def _installs(self) -> list[Install]:
        return [self._install(shard) for shard in range(len(self._shards))]


_VECTORS = ("model", "trajectory", "projected")


def _timed(work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """The result of some work, and its time [s]."""
    began = time.perf_counter()
    return work(*args), time.perf_counter() - began
