"""What the tasks of an exchange cycle and the agent of their host say to each other, through a Unix socket.

The socket lies in a folder that only this user can open; whoever connects shows the token of the run first.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from training.agents.lifelines import AgentId
from training.door import Door
from training.transports.basics import Vector

#: Connections that wait while the agent accepts another.
_BACKLOG: Final = 16
_LOOK_SECONDS: Final = 1.0


class Take(NamedTuple):
    """Asks an agent for its contribution to the sum of a shard, at its next step border."""

    cycle: int
    """Number of the exchange cycle; a task that Spark repeats gets the same answer."""
    shard: int
    limit: int
    """Number of samples that the agent may use, counted from its start."""
    to_the_limit: bool
    """Whether it shortens a step that would pass the limit; else it waits for a higher limit."""
    epochs_done: float
    """Samples of all agents so far in epochs, for the learning rate."""


class Install(NamedTuple):
    """Gives an agent a shard of the projected joint model."""

    shard: int
    projected: Vector
    cycle: int
    """Number of the shard's cycles so far, for the strength of the pull."""


class Given(NamedTuple):
    """An agent's answer to `Take`."""

    agent: AgentId
    contribution: Vector
    """(n + 1,) from `training.algorithms.mpca_rules.contribution`."""
    account: dict[str, Any]
    """Everything that the agent did since its start: a lost answer loses nothing."""


class Reduced(NamedTuple):
    """The sum of the contributions of some agents to a shard."""

    total: Vector | None = None
    """None: no agent."""
    accounts: tuple[tuple[AgentId, dict[str, Any]], ...] = ()
    """Of the agents that answered."""

    def plus(self, other: Reduced) -> Reduced:
        """The sum over the agents of both."""
        accounts = (*self.accounts, *other.accounts)
        if self.total is None or other.total is None:
            return Reduced(other.total if self.total is None else self.total, accounts)
        total: Vector = self.total + other.total
        return Reduced(total, accounts)


Message = Take | Install
Answer = Callable[[Message], Given | None]


def serve(path: Path, token: bytes, answer: Answer) -> None:
    """Answer messages at a socket, in threads, until the process ends."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(_BACKLOG)
    door = Door(server, token)

    def talk(task: socket.socket) -> None:
        # The task may be gone.
        with contextlib.suppress(OSError, EOFError, AbsentError), _connection(task) as connection:
            connection.send(answer(connection.recv()))

    def accept() -> None:
        while True:
            for task in door.welcome(_LOOK_SECONDS):
                threading.Thread(target=talk, args=(task,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _connection(opened: socket.socket) -> Connection[Any, Any]:
    """A socket that carries Python's objects; only after the token."""
    return Connection(opened.detach())


class AbsentError(Exception):
    """No agent answers at a socket."""


def ask(path: Path, token: bytes, message: Message, seconds: float) -> Given | None:
    """Send a message to the agent and return its answer.

    Raises:
        AbsentError: There is none, or it does not answer in time.
    """
    try:
        with socket.socket(socket.AF_UNIX) as to_agent:
            to_agent.settimeout(seconds)
            to_agent.connect(str(path))
            to_agent.sendall(token)
            to_agent.settimeout(None)
            connection = _connection(to_agent)
        with connection:
            connection.send(message)
            if connection.poll(seconds):
                found: Given | None = connection.recv()
                return found
    except (OSError, EOFError) as cause:
        raise AbsentError(f"{path}: {cause}") from cause
    raise AbsentError(f"{path}: no answer within {seconds:g} s")
