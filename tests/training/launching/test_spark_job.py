"""What a task of Spark does for mpirun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time

import pytest

from training.launching import spark_agent
from training.launching.spark_job import _serve


def test_mpirun_did_not_learn_of_a_killed_executor_and_its_rank_continued() -> None:
    agent, task = socket.socketpair()
    driver, to_driver = socket.socketpair()
    command = 0
    with agent, driver, to_driver:
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(task, to_driver), daemon=True)
        process.start()
        try:
            task.close()
            spark_agent.write_line(agent, {"command": "echo $$; exec sleep 300"})
            agent.settimeout(60)
            command = int(agent.recv(100))
            process.kill()
            process.join()
            # The command outlives the executor, but does not hold its connection.
            assert agent.recv(1) == b""
        finally:
            process.kill()
            process.join()
            if command:
                os.kill(command, signal.SIGKILL)


@pytest.mark.slow
def test_a_command_waited_without_end_for_an_agent_that_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.launching.spark_job._GRACE_SECONDS", 0.5)
    agent, task = socket.socketpair()
    driver, to_driver = socket.socketpair()
    with agent, task, driver, to_driver:
        thread = threading.Thread(target=_serve, args=(task, to_driver), daemon=True)
        thread.start()
        spark_agent.write_line(agent, {"command": "head -c 3000000 /dev/zero; exit 3"})
        time.sleep(1.5)
        agent.settimeout(60)
        content = b""
        while not content.endswith(b"status 3"):
            content += agent.recv(1 << 16)
        thread.join()
        assert len(content) == 3_000_000 + len(b"\0status 3")
