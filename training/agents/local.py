"""What a task does on its host: starts an agent as a process of its own, and finds it again.

All agents of a run on a host have one folder, which only this user can open. Each holds a lock on it from before its
start to its end, also by a kill; the last one to end removes the folder, or the next run on the host does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ingestion.environment import PROGRAM
from training.agents.lifelines import AgentId
from training.agents.messages import Given, Install, Message, ask
from training.errors import LaunchError
from training.transports.basics import Vector

_PREFIX: Final = "hep-agents-"


class Home(NamedTuple):
    """What all tasks and agents of a run know."""

    name: str
    """Number of the run; nobody can guess it."""
    driver: tuple[str, int]
    """Host and port of the lifelines."""
    token: str
    """Secret of the run."""

    @property
    def folder(self) -> Path:
        """The folder of the run on this host."""
        return Path(tempfile.gettempdir()) / f"{_PREFIX}{self.name}"

    def enter(self) -> int:
        """Make the folder if there is none; returns a descriptor that holds it for those who have it.

        Raises:
            LaunchError: Another user has made it.
        """
        if not self.folder.exists():
            _remove_abandoned()
        while True:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            try:
                held = os.open(self.folder, _FOLDER)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    continue
                raise LaunchError(f"{self.folder} is no folder of this user ({error.strerror}). Remove it.") from error
            status = os.fstat(held)
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                os.close(held)
                raise LaunchError(f"{self.folder} is not a folder that only this user can open. Remove it.")
            fcntl.flock(held, fcntl.LOCK_SH)
            # The last agent may just have removed it.
            if os.fstat(held).st_nlink:
                return held
            os.close(held)

    def leave(self, held: int) -> None:
        """Let go of the folder, and remove it as the last one."""
        fcntl.flock(held, fcntl.LOCK_UN)
        _remove_unheld(self.folder, held)

    def file(self, agent: AgentId, suffix: str) -> Path:
        """A file of an agent."""
        return self.folder / f"{agent.partition}-{agent.number}.{suffix}"


_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def _remove_unheld(folder: Path, opened: int) -> None:
    """Remove a folder, an open one, unless an agent holds it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the folders of runs whose driver and agents were all killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            opened = os.open(folder, _FOLDER)
            try:
                if os.fstat(opened).st_uid == os.getuid():
                    _remove_unheld(folder, opened)
            finally:
                os.close(opened)


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
    held = home.enter()
    try:
        argument = home.file(start.agent, "json")
        content: dict[str, Any] = {"home": home, "start": start, "cycles": [each.cycle for each in joint]}
        argument.write_text(json.dumps(content), encoding="utf-8")
        np.savez(argument.with_suffix(".npz"), *[each.projected for each in joint])
        path = os.pathsep.join(filter(None, sys.path))
        with argument.with_suffix(".log").open("wb") as log:
            # The end of the task, and of its executor, must not reach it: its lifeline does.
            subprocess.Popen(
                [*PROGRAM, "training.agents.agent_process", str(held), str(argument)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **start.environment, "PYTHONPATH": path},
                pass_fds=[held],
            )
    finally:
        os.close(held)


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
