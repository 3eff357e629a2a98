"""An agent: a rank of a training without MPI.

Its process begins in a task of Spark. It ends with the driver, the process that runs the Spark job.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hep_core.environment import MODULE_COMMAND
from training.launching.rank_reports import LaunchFiles
from training.launching.spark_agent import keep_alive
from training.transports.spark import SparkTransport

if TYPE_CHECKING:
    from training.loop.progress import Progress

_CONNECT_SECONDS: Final = 30.0


class AgentStart(NamedTuple):
    """The data that all agents of a run get; the files are on storage that all hosts share."""

    driver: tuple[str, int]
    """Host and port at which the driver listens."""
    token: str
    """Secret that connections of the run begin with."""
    runs: str
    """File of the list with the run."""
    log: str
    """File of the agents' output."""
    environment: dict[str, str]
    """Variables to set in addition, such as the number of threads."""


def start_agent(start: AgentStart, rank: int, workers: int, local_rank: int) -> None:
    """Start an agent, which outlives the task; returns at once.

    `rank`: its number among `workers` agents. `local_rank`: its number among those of its host.
    """
    rank_variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MPI_LOCALRANKID": str(local_rank),
        "PMI_RANK": str(rank),
    }
    with Path(start.log).open("ab") as log:
        # A session of its own keeps signals to the task and its executor from the agent. The agent
        # ends when its connection to the driver does.
        process = subprocess.Popen(
            [*MODULE_COMMAND, "training.launching.agent_process", start.runs],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | start.environment | rank_variables,
        )
    if process.stdin is None:
        raise AssertionError("a process without an input pipe")
    # The token goes through a pipe, since other users see arguments, and files outlive a kill.
    with process.stdin as to_agent:
        to_agent.write(json.dumps([rank, workers, *start]).encode())
    # Someone must wait for a child process, which otherwise stays a zombie after its end.
    threading.Thread(target=process.wait, daemon=True).start()


def main() -> int:
    """Run an agent to its end; returns the exit status.

    Its data come from the standard input. An error of the training goes to a file, and the driver
    raises it.
    """
    rank, workers, driver, token, runs, *_ = json.load(sys.stdin)
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
    files = LaunchFiles(Path(runs).parent)
    try:
        # These imports come here so that the driver gets the error of a missing library.
        from training.launching.rank import train  # noqa: PLC0415
        from training.launching.run_spec import read_runs  # noqa: PLC0415
        from training.loop.watchdog import Watchdog  # noqa: PLC0415

        files.write_heartbeat("has loaded its libraries, and waits for the others or for its data")
        ((_, spec),) = read_runs(Path(runs))
        watchdog = Watchdog(files.stalls, files.signs, rank=rank, seconds=spec.train.stall_seconds)
        on_progress = None if rank else partial(_report_progress, transport)
        train(spec, transport, on_progress=on_progress, watchdog=watchdog)
    except BaseException as error:  # noqa: BLE001 - the driver raises it
        files.report_error(rank, error)
        return 1
    transport.send({"done": True})
    return 0


def _report_progress(transport: SparkTransport, progress: Progress) -> None:
    transport.send({"progress": progress._asdict()})


if __name__ == "__main__":
    sys.exit(main())
