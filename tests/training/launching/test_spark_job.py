"""What mpirun calls instead of ssh, and what a task of Spark does for it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.launching import spark_agent
from training.launching.spark_job import _serve, driver_address

TOKEN = "secret"  # noqa: S105


def test_the_connection_of_a_command_ends_with_its_executor() -> None:
    agent, task = socket.socketpair()
    driver, to_driver = socket.socketpair()
    command_pid = 0
    with agent, driver, to_driver:
        executor = multiprocessing.get_context("fork").Process(
            target=_serve, args=(task, to_driver), daemon=True
        )
        executor.start()
        try:
            task.close()
            spark_agent.write_line(agent, {"command": "echo $$; exec sleep 300"})
            agent.settimeout(60)
            command_pid = int(agent.recv(100))

            executor.kill()
            executor.join()

            # The command outlives the executor, but does not hold its connection.
            assert agent.recv(1) == b""
        finally:
            executor.kill()
            executor.join()
            if command_pid:
                os.kill(command_pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_command_ends_with_its_whole_output_though_the_agent_reads_late(
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
        output = b""
        while not output.endswith(b"status 3"):
            output += agent.recv(1 << 16)

        thread.join()
        assert len(output) == 3_000_000 + len(b"\0status 3")


@contextmanager
def executor_of(hosts_file: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """An executor, named in a file of hosts, that serves one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        write_hosts(hosts_file, server)

        def accept_and_serve() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept_and_serve)
        thread.start()
        yield
        thread.join()


def write_hosts(path: Path, server: socket.socket) -> None:
    """Name a server as the executor `executors-0` on host3."""
    address, port = server.getsockname()
    host = {"name": "host3", "address": address, "port": port, "token": TOKEN}
    path.write_text(json.dumps({"executors-0": host}))


def run_agent(hosts_file: Path) -> int:
    """The exit status of an agent of mpirun whose command is `sleep 5`."""
    return spark_agent.main(["", str(hosts_file), "executors-0", "sleep", "5"])


def test_the_agent_of_mpirun_prints_the_output_of_its_command_and_checks_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Without the check, an agent waits forever for a host that has lost its power."""
    checks: list[tuple[int, int]] = []
    requests: list[dict[str, Any] | None] = []
    write_line = spark_agent.write_line

    def note_checks(connection: socket.socket, document: dict[str, Any]) -> None:
        is_checked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_seconds = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        checks.append((is_checked, idle_seconds))
        write_line(connection, document)

    def serve(connection: socket.socket) -> None:
        assert connection.recv(len(TOKEN)) == TOKEN.encode()
        requests.append(spark_agent.read_line(connection))
        connection.sendall(b"two\nlines")
        spark_agent.write_status(connection, -9)

    monkeypatch.setattr(spark_agent, "write_line", note_checks)

    with executor_of(tmp_path / "hosts.json", serve):
        status = run_agent(tmp_path / "hosts.json")

    assert status == 9
    assert capfdbinary.readouterr().out == b"two\nlines"
    assert requests == [{"command": "sleep 5"}]
    assert checks == [(1, 20)]


LOST_EXECUTOR = "the executor on host3 (127.0.0.1) is lost: "


def test_an_executor_that_ends_its_connection_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def read_request(connection: socket.socket) -> None:
        spark_agent.read_line(connection)

    with executor_of(tmp_path / "hosts.json", read_request):
        status = run_agent(tmp_path / "hosts.json")

    assert status == 1
    assert capfd.readouterr().err.startswith(LOST_EXECUTOR)


def test_an_executor_that_is_not_reached_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        write_hosts(tmp_path / "hosts.json", server)

    status = run_agent(tmp_path / "hosts.json")

    assert status == 1
    assert capfd.readouterr().err.startswith(LOST_EXECUTOR)


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
