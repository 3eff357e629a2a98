"""The agents of a run, as the driver sees them: it starts them, and replaces or gives up those that are lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from training.agents.ledger import Ledger
from training.agents.lifelines import AgentId, Lifelines
from training.agents.messages import Install, Reduced, Take
from training.errors import LaunchError
from training.settings import TrainSettings

#: Time for an agent to import its libraries and to build its network [s].
_START_SECONDS: Final = 300.0
#: Number of cycles in a row without an answer after which an agent is given up.
_MOST_ABSENT: Final = 3


class Cluster(Protocol):
    """What the driver asks of the cluster; each call is a job of short tasks."""

    def start(self, agents: Sequence[AgentId], epoch: int, joint: list[Install]) -> None:
        """Start agents from the projected joint model; returns before they train."""

    def reduce(self, takes: dict[AgentId, Take]) -> Reduced:
        """Add up the contributions of some agents."""

    def install(self, agents: Collection[AgentId], message: Install) -> int:
        """Give some agents a shard; returns the number of those that took it."""


class Crew:
    """The agents.

    Args:
        settings: Settings of the training.
        cluster: Starts agents.
        lifelines: Connections to the agents.
        ledger: The accounts.
        on_loss: Called with a sentence when an agent is lost.
    """

    def __init__(
        self,
        settings: TrainSettings,
        cluster: Cluster,
        lifelines: Lifelines,
        ledger: Ledger,
        on_loss: Callable[[str], None],
    ) -> None:
        self._settings, self._cluster, self._lifelines, self._ledger = settings, cluster, lifelines, ledger
        self._on_loss = on_loss
        self._waiting = set(range(settings.workers))
        """Partitions that need an agent."""
        self._starting: dict[AgentId, float] = {}
        """Agents that start, with their deadlines."""
        self.live: set[AgentId] = set()
        """Agents that train."""
        self._absent: Counter[AgentId] = Counter()
        self._started = 0
        self.num_lost = 0

    @property
    def is_complete(self) -> bool:
        """Whether no agent is still to come."""
        return not self._waiting and not self._starting

    def review(self, epoch: int, joint: Callable[[], list[Install]], *, seconds: float = 0.0) -> None:
        """Find out who is there, and start agents for the partitions without one.

        Args:
            epoch: Current epoch.
            joint: Gives the shards of the projected joint model.
            seconds: Time to wait for news.

        Raises:
            LaunchError: An agent failed, or agents were lost too often.
        """
        for agent in self._lifelines.poll(seconds):
            self._lose(agent, "its process is gone")
        for agent, deadline in list(self._starting.items()):
            if agent in self._lifelines.ready:
                del self._starting[agent]
                self.live.add(agent)
                self._ledger.begin(agent.partition)
            elif time.monotonic() > deadline:
                self._give_up(agent, f"it did not start within {_START_SECONDS:.0f} s")
        for late in self._lifelines.ready - self.live:
            self._lifelines.drop(late)
        if self._waiting:
            agents = [AgentId(index, self._started + place) for place, index in enumerate(sorted(self._waiting))]
            self._started += len(agents)
            self._starting |= dict.fromkeys(agents, time.monotonic() + _START_SECONDS)
            self._waiting.clear()
            self._cluster.start(agents, epoch, joint())

    def answered(self, asked: Collection[AgentId], reduced: Reduced) -> None:
        """Take over the accounts of a cycle, and give up agents that do not answer."""
        found = dict(reduced.accounts)
        for agent in asked:
            if agent in found:
                del self._absent[agent]
                self._ledger.report(agent.partition, found[agent])
                continue
            self._absent[agent] += 1
            if self._absent[agent] >= _MOST_ABSENT:
                self._give_up(agent, f"it did not answer {_MOST_ABSENT} times")

    def _give_up(self, agent: AgentId, why: str) -> None:
        self._lifelines.drop(agent)
        self._lose(agent, why)

    def _lose(self, agent: AgentId, why: str) -> None:
        """An agent is gone: its partition gets another, or is given up."""
        index, settings = agent.partition, self._settings
        if agent not in self.live | self._starting.keys():
            # It was given up before.
            return
        self.live.discard(agent)
        self._starting.pop(agent, None)
        self._ledger.end(index)
        self.num_lost += 1
        words = f"the agent of partition {index} was lost ({why})"
        if settings.on_rank_loss == "stop":
            raise LaunchError(f"{words}. train.on_rank_loss is stop: the same command resumes from the last checkpoint")
        if self.num_lost > settings.max_restarts:
            raise LaunchError(
                f"{words}, {self.num_lost} lost so far. Raise train.max_restarts (now {settings.max_restarts}); or "
                f"find the cause: out of memory, a machine that fails?"
            )
        if settings.on_rank_loss == "restart":
            self._waiting.add(index)
            self._on_loss(f"{words}; another one starts from the joint model")
            return
        if not self.live and self.is_complete:
            raise LaunchError(f"{words}, and no other is left. Set train.on_rank_loss: restart")
        self._on_loss(f"{words}; the others continue")
