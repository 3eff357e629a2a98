"""Every port that a run opens: where it listens, and what strangers can do there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from feature_datasets import write_dataset
from ranks import processes_of, wait_until
from training_runs import flat_weights, make_spec

from features.dataset import FeatureDataset
from training.errors import LaunchError
from training.launching.launcher import launch

pytestmark = [pytest.mark.minutes, pytest.mark.distributed, pytest.mark.timeout(300)]

#: What strangers send; their connections stay open.
WORDS = (
    b"",
    b"GET / HTTP/1.1\r\n",
    b"[" * 100_000,
    bytes(range(256)) * 40,
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"\0" * 9,
)
LISTENS = "0A"


class Port(NamedTuple):
    """A port that a process listens on."""

    space: str
    """Network namespace."""
    address: str
    number: int
    is_open: bool
    """Whether other hosts reach it."""


def ports_of(process: psutil.Process) -> set[Port]:
    """The ports that a process listens on, in its own network namespace."""
    own_value, actual = Path(f"/proc/{process.pid}"), set()
    with suppress(OSError, psutil.Error):
        inodes = {str(path.readlink()) for path in (own_value / "fd").iterdir()}
        has_network = len((own_value / "net/dev").read_text().splitlines()) > 3
        for name in ("tcp", "tcp6"):
            for line in (own_value / "net" / name).read_text().splitlines()[1:]:
                message = line.split()
                if message[3] == LISTENS and f"socket:[{message[9]}]" in inodes:
                    address, _, index = message[1].partition(":")
                    is_loopback = address in (
                        "0100007F",
                        "0" * 24 + "01000000",
                        "0" * 16 + "FFFF00000100007F",
                    )
                    is_open = has_network and not is_loopback
                    actual.add(
                        Port(
                            str((own_value / "ns/net").readlink()), address, int(index, 16), is_open
                        )
                    )
    return actual


@contextmanager
def strangers(marker: str | Path) -> Iterator[set[Port]]:
    """As soon as a process with a word in its command line, or a child, listens somewhere, strangers come and stay."""
    seen: set[Port] = set()
    is_over = threading.Event()
    addresses = {"127.0.0.1", *(interface.address for all_of in psutil.net_if_addrs().values()
                                for interface in all_of if interface.family is socket.AF_INET)}  # fmt: skip
    current = str(Path("/proc/self/ns/net").readlink())

    def come(stack: ExitStack) -> None:
        asked = began = time.monotonic()
        # To find all processes takes long, and the run needs the core.
        while not is_over.wait(max(0.02, 3 * (asked - began))):
            began = time.monotonic()
            family = processes_of(marker)
            for process in list(family):
                with suppress(psutil.NoSuchProcess):
                    family += process.children(recursive=True)
            ports = set().union(*map(ports_of, family)) - seen
            asked = time.monotonic()
            for port in ports:
                seen.add(port)
                for address in addresses:
                    for message in WORDS:
                        try:
                            stranger = socket.create_connection((address, port.number), 5)
                        except OSError:
                            break
                        assert port.space == current
                        stack.enter_context(stranger)
                        with suppress(OSError):
                            stranger.settimeout(1)
                            stranger.sendall(message)

    with ExitStack() as stack:
        thread = threading.Thread(target=come, args=(stack,))
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", rows={"train": [40] * 4, "val": [20], "test": [10]}
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to make network namespaces")
def test_a_stranger_at_a_port_of_mpirun_stopped_the_start_forever(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    calm, disturbed = (make_spec(dataset, tmp_path / name) for name in ("calm", "disturbed"))
    launch(calm, on_progress=lambda _: None)
    with strangers(disturbed.out_dir) as ports:
        launch(disturbed, on_progress=lambda _: None)
    assert ports
    assert not [port for port in ports if port.is_open]
    np.testing.assert_array_equal(flat_weights(disturbed.out_dir), flat_weights(calm.out_dir))


def test_a_killed_mpirun_is_named_and_leaves_no_rank(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=4000, max_restarts=0)

    def kill() -> None:
        wait_until(
            lambda: any((run.out_dir / "checkpoints").glob("*/complete.json")), label="a checkpoint"
        )
        (mpirun,) = (
            process
            for process in processes_of(run.out_dir)
            if process.name() in ("mpirun", "prterun")
        )
        os.kill(mpirun.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(
        LaunchError, match=r"mpirun itself was ended by signal 9 \(Killed\), and the ranks with it"
    ):
        launch(run, on_progress=lambda _: None)
    thread.join()
    assert not processes_of(run.out_dir)


SPARK = """
import sys
from pydantic import SecretStr
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_session import SparkProvider
settings = SparkSettings(master="local[2]", conf={"spark.hadoop.fs.s3a.secret.key": sys.argv[1][::-1]})
provider = SparkProvider(settings)
context = provider.context()
hadoop = context._jsc.hadoopConfiguration()
assert hadoop.get("fs.s3a.secret.key") == sys.argv[1][::-1]
print("ready", flush=True)
sys.stdin.read()
seen = context.accumulator(0)
assert context.parallelize(range(100), 4).map(lambda each: seen.add(1) or each + 1).sum() == 5050
assert seen.value == 100
"""


@pytest.mark.spark
def test_a_silent_stranger_at_a_port_of_spark_stopped_all_jobs(tmp_path: Path) -> None:
    """It listens on loopback only; the list of processes showed the credentials of `spark.conf`."""
    secret = "a6f5-hush-77d1"  # noqa: S105
    command = [sys.executable, "-c", SPARK, secret[::-1]]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        family = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        message = [
            word
            for relative in family
            if relative.status() != psutil.STATUS_ZOMBIE
            for word in relative.cmdline()
        ]
        ports = set().union(*map(ports_of, family))
        with strangers(secret[::-1]) as seen:
            wait_until(lambda: seen >= ports, label="strangers at all ports")
            process.communicate("")
    assert process.returncode == 0
    assert "org.apache.spark.deploy.SparkSubmit" in message
    assert not [word for word in message if secret in word]
    assert ports
    assert not [port for port in ports if port.is_open]
