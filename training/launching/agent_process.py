"""An agent: a rank of a training without MPI. Its process begins in a task of Spark and ends with its driver."""

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
    token: str
    runs: str
    """File of the list with the run."""
    log: str
    """File of the agents' output."""
    environment: dict[str, str]


def start_agent(start: AgentStart, rank: int, workers: int, local_rank: int) -> None:
    """Start an agent, which outlives the task; returns at once."""
    rank_variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MPI_LOCALRANKID": str(local_rank),
        "PMI_RANK": str(rank),
    }
    with Path(start.log).open("ab") as log:
        # The end of the task and of its executor must not reach the agent. The end of its connection
        # to the driver does.
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
    # Other users of the host see arguments, and files outlive a kill.
    with process.stdin as to_agent:
        to_agent.write(json.dumps([rank, workers, *start]).encode())
    # Without this it stays a zombie until the process of the task ends.
    threading.Thread(target=process.wait, daemon=True).start()


def main() -> int:
    """Run an agent to its end."""
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
        # The driver gets an error of libraries that are missing here.
        from training.launching.rank import read_runs, train  # noqa: PLC0415
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
