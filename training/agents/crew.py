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

    def reduce(self, takes: dict[int, Take]) -> Reduced:
        """Add up the contributions of the agents of some partitions."""

    def install(self, indices: Collection[int], message: Install) -> int:
        """Give the agents of some partitions a shard; returns the number of those that took it."""


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
        self._starting: dict[int, float] = {}
        """Partitions whose agents start, with their deadlines."""
        self._live: dict[int, int] = {}
        self._absent: Counter[int] = Counter()
        self._started = 0
        self.num_lost = 0

    @property
    def live(self) -> dict[int, int]:
        """Numbers of the agents that train, by partition."""
        return dict(self._live)

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
        for index, deadline in list(self._starting.items()):
            if index in self._lifelines.ready:
                del self._starting[index]
                self._live[index] = self._lifelines.ready[index]
                self._ledger.begin(index)
            elif time.monotonic() > deadline:
                self._give_up(index, f"it did not start within {_START_SECONDS:.0f} s")
        if self._waiting:
            agents = [AgentId(index, self._started + place) for place, index in enumerate(sorted(self._waiting))]
            self._started += len(agents)
            self._starting |= dict.fromkeys(self._waiting, time.monotonic() + _START_SECONDS)
            self._waiting.clear()
            self._cluster.start(agents, epoch, joint())

    def answered(self, asked: Collection[int], reduced: Reduced) -> None:
        """Take over the accounts of a cycle, and give up agents that do not answer."""
        found = {
            agent.partition: account
            for agent, account in reduced.accounts
            if self._live.get(agent.partition) == agent.number
        }
        for index in asked:
            if index in found:
                self._absent.pop(index, None)
                self._ledger.report(index, found[index])
                continue
            self._absent[index] += 1
            if self._absent[index] >= _MOST_ABSENT:
                self._give_up(index, f"it did not answer {_MOST_ABSENT} times")

    def _give_up(self, index: int, why: str) -> None:
        self._lifelines.drop(index)
        self._lose(AgentId(index, self._live.get(index, -1)), why)

    def _lose(self, agent: AgentId, why: str) -> None:
        """An agent is gone: its partition gets another, or is given up."""
        index, settings = agent.partition, self._settings
        if self._live.get(index, agent.number) != agent.number or not {index} & (self._live.keys() | self._starting):
            # It was given up before.
            return
        self._live.pop(index, None)
        self._starting.pop(index, None)
        self._absent.pop(index, None)
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
        if not self._live and not self._starting and not self._waiting:
            raise LaunchError(f"{words}, and no other is left. Set train.on_rank_loss: restart")
        self._on_loss(f"{words}; the others continue without its events")
