"""What mpirun calls instead of ssh, and what a task of Spark does for it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.launching import spark_agent
from training.launching.spark_job import _serve, driver_address


def test_mpirun_did_not_learn_of_a_killed_executor_and_its_rank_continued() -> None:
    agent, task = socket.socketpair()
    driver, to_driver = socket.socketpair()
    command = 0
    with agent, driver, to_driver:
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(task, to_driver), daemon=True
        )
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
def test_a_command_waited_without_end_for_an_agent_that_read_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.launching.spark_job._GRACE_SECONDS", 0.5)
    agent, task = socket.socketpair()
    driver, to_driver = socket.socketpair()
    with agent, task, driver, to_driver:
        thread = threading.Thread(target=_serve, args=(task, to_driver), daemon=True)
        thread.start()
        spark_agent.write_line(agent, {"command": "head -c 3000000 /dev/zero; exit 3"})
        time.sleep(1.5)
        agent.settimeout(60)
        document = b""
        while not document.endswith(b"status 3"):
            document += agent.recv(1 << 16)
        thread.join()
        assert len(document) == 3_000_000 + len(b"\0status 3")


def test_a_host_without_power_kept_the_agent_of_mpirun_waiting_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    seen: list[tuple[int, int]] = []
    write = spark_agent.write_line

    def noting(connection: socket.socket, document: dict[str, Any]) -> None:
        is_checked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        seen.append((is_checked, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)))
        write(connection, document)

    monkeypatch.setattr(spark_agent, "write_line", noting)
    reports: list[dict[str, Any] | None] = []

    def task(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            assert connection.recv(len("secret")) == b"secret"
            reports.append(spark_agent.read_line(connection))
            connection.sendall(b"what it\nprints")
            spark_agent.write_status(connection, -9)

    table = tmp_path / "hosts.json"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        table.write_text(
            json.dumps(
                {"host": {"name": "host3", "address": address, "port": port, "token": "secret"}}
            )
        )
        thread = threading.Thread(target=task, args=(server,))
        thread.start()
        status = spark_agent.main(["", str(table), "host", "sleep", "5"])
        thread.join()
    assert (status, capfdbinary.readouterr().out) == (9, b"what it\nprints")
    assert reports == [{"command": "sleep 5"}]
    assert seen == [(1, 20)]


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_lost_executor_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_reached: bool
) -> None:
    table = tmp_path / "hosts.json"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        host = {"name": "host3", "address": address, "port": port, "token": "secret"}
        table.write_text(json.dumps({"executors-0": host}))

        def task() -> None:
            connection, _ = server.accept()
            with connection:
                spark_agent.read_line(connection)

        thread = threading.Thread(target=task)
        if is_reached:
            thread.start()
        else:
            server.close()
        assert spark_agent.main(["", str(table), "executors-0", "sleep", "5"]) == 1
        if is_reached:
            thread.join()
    assert capfd.readouterr().err.startswith("the executor on host3 (127.0.0.1) is lost: ")


@pytest.mark.parametrize(
    ("conf", "address", "name"),
    [
        (
            {"spark.driver.host": "driver.site", "spark.driver.bindAddress": "10.0.0.9"},
            "10.0.0.9",
            "driver.site",
        ),
        ({"spark.driver.host": "driver.site"}, "driver.site", "driver.site"),
        ({"spark.driver.bindAddress": "10.0.0.7"}, "10.0.0.7", "this-host"),
        ({}, "this-host", "this-host"),
    ],
    ids=str,
)
def test_executors_get_the_name_of_the_driver_that_the_site_sets(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], address: str, name: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "this-host")
    spark: Any = SimpleNamespace(getConf=lambda: conf)
    assert driver_address(spark) == (address, name)
