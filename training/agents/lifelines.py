"""Connections between the driver and its agents: an agent without its driver ends, a driver without an agent knows.

They carry lines of JSON: a greeting, that the agent is ready, and at most one error. Vectors go through Spark.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from training.door import Door
from training.launching.rank_reports import described, raise_described
from training.launching.spark_agent import keep_alive, write_line

_CONNECT_SECONDS: Final = 30.0
_MOST_BYTES: Final = 1 << 20


class AgentId(NamedTuple):
    """An agent."""

    partition: int
    """Number of its partition."""
    number: int
    """Number of the agent; one that replaces a lost one has a new number."""


class Lifelines:
    """The driver's ends.

    Args:
        address: Host to listen on.
        token: Secret of the run.
    """

    def __init__(self, address: str, token: str) -> None:
        self._door = Door(socket.create_server((address, 0)), token.encode())
        self._lines: dict[socket.socket, _Line] = {}
        self.ready: set[AgentId] = set()
        """Agents that have begun to train."""
        self.port: int = self._door.address[1]

    def poll(self, seconds: float = 0.0) -> list[AgentId]:
        """Take in what has arrived, or arrives within some time; returns the agents that were lost.

        Raises:
            LaunchError: An agent has failed; the message comes from there.
        """
        ready = select.select([*self._door.sockets, *self._lines], [], [], seconds)[0]
        spoke = self._lines.keys() & set(ready)
        lost = [gone for connection in spoke if (gone := self._read(connection)) is not None]
        for accepted in self._door.take(ready):
            keep_alive(accepted)
            self._lines[accepted] = _Line()
        return lost

    def drop(self, agent: AgentId) -> None:
        """End an agent."""
        for connection, line in list(self._lines.items()):
            if line.agent == agent:
                self._forget(connection)

    def close(self) -> None:
        """End all agents."""
        for connection in list(self._lines):
            self._forget(connection)
        self._door.close()

    def _read(self, connection: socket.socket) -> AgentId | None:
        """What an agent says; the agent if it is gone."""
        line = self._lines[connection]
        try:
            part = connection.recv(_MOST_BYTES)
        except OSError:
            part = b""
        *complete, line.begun = (line.begun + part).split(b"\n")
        for each in complete:
            self._listen(line, json.loads(each))
        if part and len(line.begun) < _MOST_BYTES:
            return None
        self._forget(connection)
        return line.agent

    def _listen(self, line: _Line, told: dict[str, Any]) -> None:
        agent = AgentId(told["partition"], told["number"])
        line.agent = agent
        if "error" in told:
            raise_described(f"the agent of partition {agent.partition} failed", told["error"])
        if "ready" in told:
            self.ready.add(agent)

    def _forget(self, connection: socket.socket) -> None:
        self.ready -= {self._lines.pop(connection).agent}
        connection.close()


@dataclass
class _Line:
    """A connection to an agent."""

    agent: AgentId | None = None
    begun: bytes = b""
    """The beginning of a line."""


class Lifeline:
    """An agent's end.

    Args:
        driver: Host and port.
        token: Secret of the run.
        agent: The agent.
        on_end: Called in a thread when the driver closes the connection or is gone.
    """

    def __init__(self, driver: tuple[str, int], token: str, agent: AgentId, *, on_end: Callable[[], None]) -> None:
        self._agent, self._on_end = agent, on_end
        self._connection = socket.create_connection(driver, _CONNECT_SECONDS)
        self._connection.settimeout(None)
        keep_alive(self._connection)
        self._connection.sendall(token.encode())
        self._say({})
        threading.Thread(target=self._await_end, daemon=True).start()

    def say_ready(self) -> None:
        """The agent begins to train."""
        self._say({"ready": True})

    def say_error(self, error: BaseException) -> None:
        """The agent ends."""
        self._say({"error": described(error)})

    def _say(self, content: dict[str, Any]) -> None:
        write_line(self._connection, {**self._agent._asdict(), **content})

    def close(self) -> None:
        """Let the driver know that the agent is gone."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _await_end(self) -> None:
        """The driver never writes."""
        with contextlib.suppress(OSError):
            while self._connection.recv(1024):
                pass
        self._on_end()
