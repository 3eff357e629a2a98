"""What a task of Spark does for mpirun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket

from training.launching import spark_agent
from training.launching.spark_job import _serve


def test_mpirun_did_not_learn_of_a_killed_executor_and_its_rank_continued() -> None:
    agent, task = socket.socketpair()
    driver, to_driver = socket.socketpair()
    with agent, driver, to_driver:
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(task, to_driver, "secret"))
        process.start()
        task.close()
        spark_agent.write_line(agent, {"token": "secret", "command": "echo $$; exec sleep 300"})
        agent.settimeout(60)
        command = int(agent.recv(100))
        try:
            process.kill()
            process.join()
            # The command outlives the executor, but does not hold its connection.
            assert agent.recv(1) == b""
        finally:
            os.kill(command, signal.SIGKILL)
