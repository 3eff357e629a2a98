"""Hosts of a network on this machine: namespaces with a delay and a rate between them.

Each host has an address, a host name, a hosts file and a /dev/shm of its own, so that MPI, Spark
and SLURM take them for different machines; all other folders are shared storage. A bridge connects
them; with a delay or a rate, a switch in user space: every host has a TAP device, whose frames a
process forwards after the delay (see `network_switch.py`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from ranks import processes_of, wait_until

#: Frames as large as in a cluster's network: a model of 2,013 parameters fills one.
_FRAME_BYTES = 9000
_SWITCH = Path(__file__).with_name("network_switch.py")
_MESSAGES = Path(__file__).with_name("message_programs.py")


class Network(NamedTuple):
    """Hosts, and the programs that enter them."""

    names: list[str]
    addresses: list[str]
    agent: Path
    """A program that runs a command on a host as ssh does: `agent ADDRESS-OR-NAME COMMAND ...`."""
    spaces: list[str]

    def on_host(self, index: int, *command: str) -> list[str]:
        return [str(self.agent), self.addresses[index], shlex.join(command)]

    def run_on_host(self, index: int, *command: str) -> str:
        """Run a command on a host to its good end; returns what it printed."""
        return _run(*self.on_host(index, *command))

    def serve(
        self, index: int, log: Path, *command: str, env: Mapping[str, str] | None = None
    ) -> None:
        """Start a service on a host; it ends with the host."""
        with log.open("ab") as output:
            service = ["setsid", "--fork", *self.on_host(index, *command)]
            subprocess.run(
                service, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True, env=env
            )

    def processes(self, index: int, word: str) -> list[psutil.Process]:
        """The processes of a host with a word in their command lines."""
        pids = self._pids(index)
        return [process for process in processes_of(word) if process.pid in pids]

    def _pids(self, index: int) -> set[int]:
        """The ids of all processes of a host."""
        return set(map(int, _run("ip", "netns", "pids", self.spaces[index]).split()))

    def switch_off(self, index: int) -> None:
        """End a host as a power cut does: the others hear nothing, and no process is left."""
        _run("ip", "-n", self.spaces[index], "link", "set", "net0", "down")
        for pid in self._pids(index):
            os.kill(pid, signal.SIGKILL)

    def switch_on(self, index: int) -> None:
        """Start a host that was switched off, without any service."""
        _boot(self.agent.parent, self.names[index], self.spaces[index])
        _run("ip", "-n", self.spaces[index], "link", "set", "net0", "up")

    def show_cgroups(self, index: int) -> None:
        """Mount the memory controller of cgroups on a host, whose own /sys hides it."""
        root = Path("/sys/fs/cgroup")
        if (root / "cgroup.controllers").exists():
            self.run_on_host(index, "mount", "-t", "cgroup2", "cgroup2", str(root))
            return
        controller = str(root / "memory")
        self.run_on_host(index, "mount", "-t", "tmpfs", "tmpfs", str(root))
        self.run_on_host(index, "mkdir", controller)
        self.run_on_host(index, "mount", "-t", "cgroup", "-o", "memory", "cgroup", controller)

    @property
    def launcher_args(self) -> list[str]:
        """Arguments of mpirun for one rank a host."""
        hosts = ",".join(f"{address}:1" for address in self.addresses)
        return ["--prtemca", "plm_ssh_agent", str(self.agent), "--host", hosts]

    def messages(
        self, algorithm: str, sizes: Sequence[int], *, repeats: int = 8
    ) -> list[dict[str, float]]:
        """Times [s] of an all-reduce of each size, by host: see `message_programs`."""
        command = (algorithm, str(repeats), ",".join(map(str, sizes)), *self.addresses)
        processes = [
            subprocess.Popen(
                self.on_host(rank, sys.executable, str(_MESSAGES), str(rank), *command),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(len(self.addresses))
        ]
        return [json.loads(process.communicate(timeout=60)[0]) for process in processes]

    def round_trip(self) -> float:
        """Median time of a byte from the first host to the second and back [s]."""
        pair = self._replace(addresses=self.addresses[:2])
        medians_by_host = pair.messages("doubling", [1], repeats=50)
        return sum(medians["1"] for medians in medians_by_host)


def reason_against_hosts() -> str:
    """Reason why this machine cannot have such hosts; empty if it can."""
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: iproute2, util-linux)"
    name = f"try{os.getpid()}"
    command = ["ip", "netns", "add", name]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        return f"no right to make network namespaces: {completed.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


@contextmanager
def network(
    count: int, folder: Path, *, delay: float = 0.0, rate: float = 0.0
) -> Iterator[Network]:
    """Hosts, each with a delay [s] and a rate [bits/s] of what it sends; 0: none."""
    prefix = f"h{os.getpid()}"
    spaces = [f"{prefix}-{index}" for index in range(count)]
    names = [f"host{index + 1}" for index in range(count)]
    addresses = [f"10.77.0.{index + 1}" for index in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names, strict=True))]
    (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _remove_remains()
    with ExitStack() as stack:
        for space in (prefix, *spaces):
            _run("ip", "netns", "add", space)
            stack.callback(_remove, space)
        for space in spaces:
            _run("ip", "-n", space, "link", "set", "lo", "up")
        if delay or rate:
            stack.enter_context(_switch(spaces, delay, rate))
        else:
            _connect_by_bridge(prefix, spaces)
        for space, address in zip(spaces, addresses, strict=True):
            _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "net0")
            _run("ip", "-n", space, "link", "set", "net0", "mtu", str(_FRAME_BYTES), "up")
        for name, space in zip(names, spaces, strict=True):
            _boot(folder, name, space)
        yield Network(names, addresses, _agent(folder), spaces)


#: What makes a host of a network namespace; the process lives as long as the host.
_BOOT = """
hostname "$0"
mount --make-rprivate /
mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
echo $$ > "$1/$0.new" && mv "$1/$0.new" "$1/$0.pid"
exec sleep infinity < /dev/null > /dev/null 2>&1
"""


def _boot(folder: Path, name: str, space: str) -> None:
    pid = folder / f"{name}.pid"
    pid.unlink(missing_ok=True)
    command = [
        "ip",
        "netns",
        "exec",
        space,
        "unshare",
        "--uts",
        "--ipc",
        "--mount",
        "sh",
        "-ec",
        _BOOT,
    ]
    # A process that nobody has to wait for.
    _run("setsid", "--fork", *command, name, str(folder))
    wait_until(pid.exists, label=f"{name} is up", seconds=10)


def _remove_remains() -> None:
    """Remove hosts whose process was killed."""
    for space in _run("ip", "netns", "list").split():
        owner = re.fullmatch(r"h(\d+)(-\d+)?", space)
        if owner and not psutil.pid_exists(int(owner[1])):
            # Another process of tests may do the same.
            with suppress(AssertionError):
                _remove(space)


def _remove(space: str) -> None:
    """End all processes of a host, and its namespace."""
    for process in _run("ip", "netns", "pids", space).split():
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
    _run("ip", "netns", "del", space)


def _connect_by_bridge(bridge: str, names: list[str]) -> None:
    _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", bridge, "link", "set", "bridge", "up")
    for index, name in enumerate(names):
        port = f"port{index}"
        _run(
            "ip",
            "-n",
            bridge,
            "link",
            "add",
            port,
            "type",
            "veth",
            "peer",
            "name",
            "net0",
            "netns",
            name,
        )
        _run(
            "ip",
            "-n",
            bridge,
            "link",
            "set",
            port,
            "mtu",
            str(_FRAME_BYTES),
            "master",
            "bridge",
            "up",
        )


@contextmanager
def _switch(names: list[str], delay: float, rate: float) -> Iterator[None]:
    """TAP devices of a switch in user space."""
    taps = [name.replace("h", "t") for name in names]
    command = [sys.executable, str(_SWITCH), str(delay), str(rate), *taps]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as switch:
        try:
            if switch.stdout is None or not switch.stdout.readline():
                raise AssertionError("the switch did not start")
            for name, tap in zip(names, taps, strict=True):
                _run("ip", "link", "set", tap, "netns", name)
                _run("ip", "-n", name, "link", "set", tap, "name", "net0")
            yield
        finally:
            switch.kill()


def _agent(folder: Path) -> Path:
    path = folder / "agent"
    path.write_text(
        "#!/bin/sh\n"
        "# Runs a command on a host: as ssh does, it joins the words, and a shell there takes them apart.\n"
        "host=${1##*.}; shift\n"
        f'exec nsenter --target "$(cat {shlex.quote(str(folder))}/host"${{host#host}}".pid)" '
        """--net --uts --ipc --mount --wdns="$PWD" sh -c "$*"\n""",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def _run(*command: str) -> str:
    for _ in range(50):
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if not re.search("busy", completed.stderr, re.IGNORECASE):
            break
        time.sleep(0.1)
    if completed.returncode:
        raise AssertionError(f"{' '.join(command)}: {completed.stderr}")
    return completed.stdout
