"""What mpirun calls instead of ssh."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from training.launching import spark_agent


def test_a_host_without_power_kept_the_agent_of_mpirun_waiting_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    seen: list[tuple[int, int]] = []
    write = spark_agent.write_line

    def noting(connection: socket.socket, content: dict[str, Any]) -> None:
        is_checked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        seen.append((is_checked, connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)))
        write(connection, content)

    monkeypatch.setattr(spark_agent, "write_line", noting)
    told: list[dict[str, Any] | None] = []

    def task(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            assert connection.recv(len("secret")) == b"secret"
            told.append(spark_agent.read_line(connection))
            connection.sendall(b"what it\nprints")
            spark_agent.write_status(connection, -9)

    table = tmp_path / "hosts.json"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        table.write_text(json.dumps({"host": {"address": address, "port": port, "token": "secret"}}))
        thread = threading.Thread(target=task, args=(server,))
        thread.start()
        status = spark_agent.main(["", str(table), "host", "sleep", "5"])
        thread.join()
    assert (status, capfdbinary.readouterr().out) == (9, b"what it\nprints")
    assert told == [{"command": "sleep 5"}]
    assert seen == [(1, 20)]
