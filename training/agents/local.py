"""What a task does on its host: starts an agent as a process of its own, and finds it again.

All agents of a run on a host have one folder, which only this user can open.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ingestion.environment import PROGRAM
from training.agents.lifelines import AgentId
from training.agents.messages import Given, Install, Message, ask
from training.errors import LaunchError
from training.transports.basics import Vector


class Home(NamedTuple):
    """What all tasks and agents of a run know."""

    name: str
    """Name of the folder; nobody can guess it."""
    driver: tuple[str, int]
    """Host and port of the lifelines."""
    token: str
    """Secret of the run."""

    @property
    def folder(self) -> Path:
        """The folder of the run on this host, made at the first use.

        Raises:
            LaunchError: Another user has made it.
        """
        path = Path(tempfile.gettempdir()) / self.name
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise LaunchError(f"{path} is not a folder that only this user can open. Remove it.")
        return path

    def file(self, agent: AgentId, suffix: str) -> Path:
        """A file of an agent."""
        return self.folder / f"{agent.partition}-{agent.number}.{suffix}"

    def clear(self, agent: AgentId) -> None:
        """Remove the files of an agent and of those that it replaced, and the folder with the last of them."""
        for path in self.folder.glob(f"{agent.partition}-*"):
            if int(path.stem.partition("-")[2]) <= agent.number:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class AgentStart(NamedTuple):
    """An agent to start."""

    agent: AgentId
    epoch: int
    """Current epoch of the run."""
    spec: str
    """File of the run's spec, on storage that all hosts share."""
    environment: dict[str, str]
    """Variables of its process."""


def start_agent(home: Home, start: AgentStart, joint: list[Install]) -> None:
    """Start an agent, which outlives the task; returns at once.

    Args:
        home: Driver and folder of the run.
        start: The agent.
        joint: The shards of the projected joint model.
    """
    argument = home.file(start.agent, "json")
    content: dict[str, Any] = {"home": home, "start": start, "cycles": [each.cycle for each in joint]}
    argument.write_text(json.dumps(content), encoding="utf-8")
    np.savez(argument.with_suffix(".npz"), *[each.projected for each in joint])
    path = os.pathsep.join(filter(None, sys.path))
    with argument.with_suffix(".log").open("wb") as log:
        # The end of the task, and of its executor, must not reach it: its lifeline does.
        subprocess.Popen(
            [*PROGRAM, "training.agents.agent_process", str(argument)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **start.environment, "PYTHONPATH": path},
        )


def read_start(path: Path) -> tuple[Home, AgentStart, list[Install]]:
    """What `start_agent` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    name, driver, token = content["home"]
    agent, *others = content["start"]
    with np.load(path.with_suffix(".npz")) as file:
        shards: list[Vector] = [file[name] for name in file.files]
    joint = [Install(shard, *each) for shard, each in enumerate(zip(shards, content["cycles"], strict=True))]
    return Home(name, (driver[0], driver[1]), token), AgentStart(AgentId(*agent), *others), joint


def ask_agent(home: Home, agent: AgentId, message: Message, seconds: float) -> Given | None:
    """Ask an agent on this host.

    Raises:
        AbsentError: It does not answer.
    """
    return ask(home.file(agent, "sock"), home.token.encode(), message, seconds)
