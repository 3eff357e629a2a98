"""A cluster of agents in threads of this process: all of a run with agents but Spark and the processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from training.agents.agent import make_agent
from training.agents.crew import Cluster
from training.agents.lifelines import AgentId, Lifeline
from training.agents.local import AgentStart, Home
from training.agents.messages import AbsentError, Given, Install, Message, Reduced, Take
from training.agents.run import train_with_agents
from training.launching.rank import RunSpec


class ThreadedCluster(Cluster):
    """Agents in threads.

    Args:
        home: Driver of the run.
        spec: The run.
        before_reduce: Called with this cluster and what it asks of the agents.
    """

    def __init__(
        self, home: Home, spec: RunSpec, before_reduce: Callable[[ThreadedCluster, dict[int, Take]], None]
    ) -> None:
        self._home, self._spec, self._before_reduce = home, spec, before_reduce
        self.agents: dict[int, Any] = {}
        self.lifelines: dict[int, Lifeline] = {}
        self.started: list[AgentId] = []

    def start(self, agents: Sequence[AgentId], epoch: int, joint: list[Install]) -> None:
        for agent in agents:
            made = make_agent(self._spec, AgentStart(agent, epoch, "", {}), joint)
            lifeline = Lifeline(self._home.driver, self._home.token, agent, on_end=made.stop)
            threading.Thread(target=made.run, args=(agent.number, lifeline.say_ready), daemon=True).start()
            self.agents[agent.partition], self.lifelines[agent.partition] = made, lifeline
            self.started.append(agent)

    def reduce(self, takes: dict[AgentId, Take]) -> Reduced:
        of_partitions = {agent.partition: take for agent, take in takes.items()}
        self._before_reduce(self, of_partitions)
        given = self._answers(of_partitions)
        parts = (Reduced(each.contribution, ((each.agent, each.account),)) for each in given if each is not None)
        return reduce(Reduced.plus, parts, Reduced())

    def install(self, agents: Collection[AgentId], message: Install) -> int:
        return len(self._answers(dict.fromkeys((agent.partition for agent in agents), message)))

    def _answers(self, messages: Mapping[int, Message]) -> list[Given | None]:
        found = []
        for index, message in messages.items():
            with contextlib.suppress(AbsentError, KeyError):
                found.append(self.agents[index].answer(message))
        return found

    def kill(self, index: int) -> None:
        """End the agent of a partition."""
        self.agents.pop(index).stop()
        self.lifelines.pop(index).close()


def train_in_threads(
    spec: RunSpec,
    *,
    before_reduce: Callable[[ThreadedCluster, dict[int, Take]], None] = lambda *_: None,
    on_loss: Callable[[str], None] = lambda _: None,
) -> ThreadedCluster:
    """Run to the end; returns the cluster."""
    made: list[ThreadedCluster] = []

    def make(home: Home, run: RunSpec) -> Cluster:
        made.append(ThreadedCluster(home, run, before_reduce))
        return made[0]

    train_with_agents(spec, make, address=("127.0.0.1", "127.0.0.1"), on_progress=lambda _: None, on_loss=on_loss)
    return made[0]


def cycles(out: Path) -> list[dict[str, Any]]:
    """The log of the cycles."""
    import json

    return [json.loads(line) for line in (out / "cycles.jsonl").read_text(encoding="utf-8").splitlines()]
