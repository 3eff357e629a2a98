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
STRANGE_MESSAGES = (
    b"",
    b"GET / HTTP/1.1\r\n",
    b"[" * 100_000,
    bytes(range(256)) * 40,
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"\0" * 9,
)
LISTENS = "0A"
LOOPBACK_ADDRESSES = ("0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F")


class Port(NamedTuple):
    """A port that a process listens on."""

    network_space: str
    address: str
    port: int
    is_open: bool
    """True if other hosts reach it."""


def listening_ports(process: psutil.Process) -> set[Port]:
    """The ports that a process listens on, in its own network namespace."""
    folder = Path(f"/proc/{process.pid}")
    ports = set()
    with suppress(OSError, psutil.Error):
        sockets = {str(path.readlink()) for path in (folder / "fd").iterdir()}
        network_space = str((folder / "ns/net").readlink())
        # The file has two lines of titles, and one for each interface; loopback is the first.
        has_network = len((folder / "net/dev").read_text().splitlines()) > 3
        for protocol in ("tcp", "tcp6"):
            for line in (folder / "net" / protocol).read_text().splitlines()[1:]:
                fields = line.split()
                state, inode = fields[3], fields[9]
                if state == LISTENS and f"socket:[{inode}]" in sockets:
                    address, _, port = fields[1].partition(":")
                    is_open = has_network and address not in LOOPBACK_ADDRESSES
                    ports.add(Port(network_space, address, int(port, 16), is_open))
    return ports


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """A process and all below it."""
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def ipv4_addresses() -> set[str]:
    """The addresses of all interfaces of this host."""
    addresses = {"127.0.0.1"}
    for interface_addresses in psutil.net_if_addrs().values():
        for interface_address in interface_addresses:
            if interface_address.family is socket.AF_INET:
                addresses.add(interface_address.address)
    return addresses


def disturb(port: Port, stack: ExitStack) -> None:
    """Send each message to a port, at each address; the connections stay open."""
    for address in ipv4_addresses():
        for message in STRANGE_MESSAGES:
            try:
                connection = socket.create_connection((address, port.port), 5)
            except OSError:
                break
            assert port.network_space == str(Path("/proc/self/ns/net").readlink())
            stack.enter_context(connection)
            with suppress(OSError):
                connection.settimeout(1)
                connection.sendall(message)


@contextmanager
def strangers(marker: str | Path) -> Iterator[set[Port]]:
    """Strangers connect to each port as soon as a process of a family listens on it, and stay.

    The family: the processes with the marker in their command line, and all below them.

    Yields:
        The ports that strangers came to.
    """
    disturbed_ports: set[Port] = set()
    is_over = threading.Event()

    def disturb_new_ports(stack: ExitStack) -> None:
        search_seconds = 0.0
        # The search of all processes takes long, and the run needs the core.
        while not is_over.wait(max(0.02, 3 * search_seconds)):
            started = time.monotonic()
            ports = set()
            for parent in processes_of(marker):
                for process in family_of(parent):
                    ports |= listening_ports(process)
            search_seconds = time.monotonic() - started
            for port in ports - disturbed_ports:
                disturbed_ports.add(port)
                disturb(port, stack)

    with ExitStack() as stack:
        thread = threading.Thread(target=disturb_new_ports, args=(stack,))
        thread.start()
        try:
            yield disturbed_ports
        finally:
            is_over.set()
            thread.join()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    rows = {"train": [40] * 4, "val": [20], "test": [10]}
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=rows)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to make network namespaces")
def test_strangers_at_the_ports_of_mpirun_change_nothing(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    undisturbed = make_spec(dataset, tmp_path / "undisturbed")
    disturbed = make_spec(dataset, tmp_path / "disturbed")

    launch(undisturbed, on_progress=lambda _: None)
    with strangers(disturbed.out_dir) as ports:
        launch(disturbed, on_progress=lambda _: None)

    assert ports
    assert not any(port.is_open for port in ports)
    np.testing.assert_array_equal(
        flat_weights(disturbed.out_dir), flat_weights(undisturbed.out_dir)
    )


def test_a_killed_mpirun_is_named_and_leaves_no_rank(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    run = make_spec(dataset, tmp_path / "out", epochs=4000, max_restarts=0)
    checkpoints = run.out_dir / "checkpoints"

    def kill_mpirun() -> None:
        wait_until(lambda: any(checkpoints.glob("*/complete.json")), label="a checkpoint")
        for process in processes_of(run.out_dir):
            if process.name() in ("mpirun", "prterun"):
                process.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=kill_mpirun)
    thread.start()
    message = r"mpirun itself was ended by signal 9 \(Killed\), and the ranks with it"
    with pytest.raises(LaunchError, match=message):
        launch(run, on_progress=lambda _: None)
    thread.join()

    assert not processes_of(run.out_dir)


#: A driver of Spark; its argument is the secret of `spark.conf`, spelled backwards.
SPARK_DRIVER = """
import sys
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.machine.spark_session import SparkProvider

secret = sys.argv[1][::-1]
settings = SparkSettings(master="local[2]", conf={"spark.hadoop.fs.s3a.secret.key": secret})
# Its files are removed with the provider.
provider = SparkProvider(settings)
context = provider.context()
assert context._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == secret
print("ready", flush=True)
sys.stdin.read()

counter = context.accumulator(0)
numbers = context.parallelize(range(100), 4).map(lambda number: counter.add(1) or number + 1)
assert numbers.sum() == 5050
assert counter.value == 100
"""


@pytest.mark.spark
def test_silent_strangers_at_the_ports_of_spark_stop_no_job_and_see_no_secret() -> None:
    secret = "a6f5-hush-77d1"  # noqa: S105
    argument = secret[::-1]
    command = [sys.executable, "-c", SPARK_DRIVER, argument]

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        ports: set[Port] = set()
        arguments: list[str] = []
        for process in family_of(psutil.Process(driver.pid)):
            ports |= listening_ports(process)
            if process.status() != psutil.STATUS_ZOMBIE:
                arguments += process.cmdline()
        with strangers(argument) as disturbed_ports:
            wait_until(lambda: disturbed_ports >= ports, label="strangers at all ports")
            driver.communicate("")

    assert driver.returncode == 0
    assert "org.apache.spark.deploy.SparkSubmit" in arguments
    assert not any(secret in argument for argument in arguments)
    assert ports
    assert not any(port.is_open for port in ports)
