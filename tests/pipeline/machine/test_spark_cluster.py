"""A Spark cluster that does not answer, or gives no executors."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import SAMPLES, invoke, small_config
from py4j.protocol import Py4JNetworkError
from pydantic import ValidationError

from pipeline.configuration.shell_sections import SparkSettings
from pipeline.errors import ConfigError, SparkJobError, UnreachableSparkError
from pipeline.machine import spark_cluster
from pipeline.machine.spark_cluster import announce_missing_executors, check_reachable
from pipeline.machine.spark_jobs import failures_of_spark
from pipeline.machine.spark_session import SparkProvider
from pipeline.terminal.exit_codes import Exit


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize(
    "master",
    [
        "spark//host1:7077",
        "spark://host1",
        "spark://host1:7077,",
        "spark://host1:70000",
        "spark://host1:0",
        "spark://[1.2]:7077",
        "http://host1:7077",
        "local[0]",
        "local[]",
        "",
        "mesos",
    ],
)
def test_a_wrong_address_is_refused_with_the_valid_forms(master: str) -> None:
    with pytest.raises(
        ValidationError, match=r"is no Spark; write local\[auto\].* spark://host1:7077, yarn"
    ):
        SparkSettings(master=master)


@pytest.mark.parametrize(
    "master",
    [
        *(
            "local",
            "local[*]",
            "local[2]",
            "local[*,4]",
            "local-cluster[2, 1, 1024]",
            "yarn",
            "spark://host1:7077",
        ),
        *("spark://a.b-c:1,[fe80::1]:7077", "k8s://https://host:6443", "k8s://host:6443"),
    ],
)
def test_every_kind_of_spark_is_accepted(master: str) -> None:
    assert SparkSettings(master=master).master == master


def test_a_master_that_does_not_answer_is_refused_before_java_starts(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.machine.spark_session.start_spark", lambda *_: pytest.fail("Java was started")
    )
    master = f"spark://127.0.0.1:{closed_port},127.0.0.2:{closed_port}"
    with pytest.raises(
        UnreachableSparkError, match=r"no Spark master answers at spark:.*127\.0\.0\.2.*refused"
    ):
        SparkProvider(SparkSettings(master=master)).context()


def test_a_host_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_cluster, "_SECONDS_TO_CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address: tuple[str, int] = server.getsockname()
        # A full queue of connections leaves the next one without an answer.
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(address)
        with pytest.raises(UnreachableSparkError, match="timed out"):
            check_reachable(f"spark://127.0.0.1:{address[1]}")
        for connection in waiting:
            connection.close()


def test_one_master_of_two_is_enough(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"spark://127.0.0.1:{closed_port},127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(
    ("index", "error"),
    [(socket.EAI_NONAME, ConfigError), (socket.EAI_AGAIN, UnreachableSparkError)],
)
def test_an_unknown_host_is_a_wrong_address_and_a_silent_name_server_is_none(
    monkeypatch: pytest.MonkeyPatch, index: int, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(index, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(error, match="hots1"):
        check_reachable("spark://hots1:7077")


@pytest.mark.parametrize("name", ["a..b", f"{'a' * 64}.cern.ch"])
def test_what_can_be_no_name_of_a_host_is_a_wrong_address(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no host is called {name}"):
        check_reachable(f"spark://{name}:7077")


def test_a_command_without_its_master_may_succeed_later(tmp_path: Any, closed_port: int) -> None:
    config = small_config(tmp_path, SAMPLES, spark={"master": f"spark://127.0.0.1:{closed_port}"})

    result = invoke("ingest", "--config", config)

    assert result.exit_code == Exit.MAY_PASS
    assert "no Spark master answers at spark://127.0.0.1" in result.stderr
    assert "bug" not in result.stderr


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (
            "Cannot call methods on a stopped SparkContext.",
            UnreachableSparkError,
            "does not take this application",
        ),
        (
            "Job 0 cancelled because SparkContext was shut down",
            UnreachableSparkError,
            "or has ended it",
        ),
        ("Answer from Java side is empty", SparkJobError, "Spark's Java process has ended"),
    ],
)
def test_an_end_of_spark_is_no_bug(message: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text), failures_of_spark("spark://host1:7077"):
        raise Py4JNetworkError(message)


def test_a_wait_for_executors_is_shown() -> None:
    messages: list[str] = []
    has_message = threading.Event()

    def show(message: str) -> None:
        messages.append(message)
        has_message.set()

    # Only the driver has memory.
    memory_status = SimpleNamespace(size=lambda: 1)
    scala_context = SimpleNamespace(getExecutorMemoryStatus=lambda: memory_status)
    java_context = SimpleNamespace(sc=lambda: scala_context)
    context: Any = SimpleNamespace(_jsc=java_context, master="spark://host1:7077")

    with announce_missing_executors(context, show):
        assert has_message.wait(60)

    assert messages[0].startswith(
        "waiting for an executor of spark://host1:7077: its workers may be down"
    )
