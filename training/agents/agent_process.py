"""An agent: a rank of a training without MPI. Its process begins in a task of Spark and ends with its driver."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

from ingestion.environment import PROGRAM
from training.launching.rank_reports import LaunchFiles
from training.launching.spark_agent import keep_alive
from training.transports.spark import SparkTransport

_CONNECT_SECONDS: Final = 30.0


class AgentStart(NamedTuple):
    """An agent to start."""

    rank: int
    workers: int
    driver: tuple[str, int]
    """Host and port."""
    token: str
    """Secret of the run."""
    spec: str
    """File of the run's spec, on storage that all hosts share."""
    log: str
    """File of what the agents print, likewise."""
    environment: dict[str, str]
    """Variables of its process."""


def start_agent(start: AgentStart) -> None:
    """Start an agent, which outlives the task; returns at once."""
    path = os.pathsep.join(filter(None, sys.path))
    with Path(start.log).open("ab") as log:
        # The end of the task, and of its executor, must not reach it: the end of its connection to the driver does.
        process = subprocess.Popen(
            [*PROGRAM, "training.agents.agent_process", start.spec],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **start.environment, "PYTHONPATH": path},
        )
    if process.stdin is None:
        raise AssertionError("a process without an input pipe")
    # Other users of the host see arguments, and files outlive a kill.
    with process.stdin as to_agent:
        to_agent.write(json.dumps(start).encode())
    # Else it stays a zombie until the process of the task ends.
    threading.Thread(target=process.wait, daemon=True).start()


def main() -> int:
    """Run an agent to its end."""
    rank, workers, driver, token, spec_path, *_ = AgentStart(*json.load(sys.stdin))
    try:
        connection = socket.create_connection((driver[0], driver[1]), _CONNECT_SECONDS)
        connection.settimeout(None)
        keep_alive(connection)
        connection.sendall(token.encode())
        transport = SparkTransport(
            connection, token.encode(), rank=rank, world_size=workers, on_end=lambda: os._exit(1)
        )
    except OSError:
        # The driver is gone already.
        return 1
    files = LaunchFiles(Path(spec_path).parent)
    try:
        # The driver hears of libraries that are missing here.
        from training.launching.rank import RunSpec, train  # noqa: PLC0415
        from training.launching.start_limit import say_present  # noqa: PLC0415
        from training.loop.watchdog import Watchdog  # noqa: PLC0415

        say_present(files, "has loaded its libraries, and waits for the others or for its data")
        spec = RunSpec.load(Path(spec_path))
        watchdog = Watchdog(files.stalls, files.signs, rank=rank, seconds=spec.train.stall_seconds)
        show = None if rank else lambda progress: transport.say({"progress": progress._asdict()})
        train(spec, transport, on_progress=show, watchdog=watchdog)
    except BaseException as error:  # noqa: BLE001 - the driver raises it
        files.report_error(rank, error)
        return 1
    transport.say({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main())
