"""Hosts of a network on this machine: network namespaces with a delay and a rate between them.

Each host has an address and a host name of its own, so that MPI takes them for different machines. A bridge connects
them. Delay and rate come from `tc netem`; a kernel without it gets a switch in user space: every host has a TAP device,
whose frames a process forwards after the delay (see `frame_switch.py`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

#: Frames as large as in a cluster's network: a model of 2,013 parameters fills one.
_FRAME_BYTES = 9000
_SWITCH = Path(__file__).with_name("frame_switch.py")


class Network(NamedTuple):
    """Hosts, and the programs that enter them."""

    addresses: list[str]
    agent: Path
    """A program that runs a command on a host as ssh does: `agent ADDRESS COMMAND ...`."""
    how: str
    """Origin of the delay."""

    def on_host(self, number: int, *command: str) -> list[str]:
        """The command on a host."""
        return [str(self.agent), self.addresses[number], shlex.join(command)]

    @property
    def launcher_args(self) -> list[str]:
        """Arguments of mpirun for one rank a host."""
        hosts = ",".join(f"{address}:1" for address in self.addresses)
        return ["--prtemca", "plm_ssh_agent", str(self.agent), "--host", hosts]

    def round_trip(self) -> float:
        """Median time of a byte from the first host to the second and back [s]."""
        asked = [sys.executable, "-c", _ECHO, self.addresses[1]]
        with subprocess.Popen(self.on_host(1, *asked, "answer"), stdout=subprocess.PIPE) as answering:
            if answering.stdout is None:
                raise AssertionError("no pipe")
            answering.stdout.readline()
            done = subprocess.run(self.on_host(0, *asked, "ask"), capture_output=True, text=True, check=True)
        return float(done.stdout)


_ECHO = """
import socket, statistics, sys, time
there = (sys.argv[1], 7777)
if sys.argv[2] == "answer":
    with socket.create_server(there) as server:
        print(flush=True)
        peer, _ = server.accept()
        while byte := peer.recv(1):
            peer.send(byte)
else:
    peer, times = socket.create_connection(there), []
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(200):
        started = time.perf_counter()
        peer.send(b"x")
        peer.recv(1)
        times.append(time.perf_counter() - started)
    print(statistics.median(times))
"""


def why_not() -> str:
    """Reason why this machine cannot have such hosts; empty if it can."""
    missing = [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: iproute2, util-linux)"
    name = f"try{os.getpid()}"
    command = ["ip", "netns", "add", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no right to make network namespaces: {done.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


@contextmanager
def network(count: int, folder: Path, *, delay: float = 0.0, rate: float = 0.0) -> Iterator[Network]:
    """Hosts, each with a delay [s] and a rate [bits/s] of what it sends; 0: none."""
    prefix = f"h{os.getpid()}"
    names = [f"{prefix}-{number}" for number in range(count)]
    addresses = [f"10.77.0.{number + 1}" for number in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        for name in (prefix, *names):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
        for name in names:
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _connect_by_bridge(prefix, names)
        how = "bridge"
        if delay or rate:
            how = "tc netem"
            if not all(_has_netem(name, delay, rate) for name in names):
                how = "switch in user space"
                stack.enter_context(_switch(names, delay, rate))
        for name, address in zip(names, addresses, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "net0")
            _run("ip", "-n", name, "link", "set", "net0", "mtu", str(_FRAME_BYTES), "up")
        yield Network(addresses, _agent(folder, prefix), how)


def _connect_by_bridge(bridge: str, names: list[str]) -> None:
    _run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", bridge, "link", "set", "bridge", "up")
    for number, name in enumerate(names):
        port = f"port{number}"
        _run("ip", "-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", name)
        _run("ip", "-n", bridge, "link", "set", port, "mtu", str(_FRAME_BYTES), "master", "bridge", "up")


def _has_netem(name: str, delay: float, rate: float) -> bool:
    words = ["delay", f"{delay * 1e6:.0f}us", *(["rate", f"{rate:.0f}bit"] if rate else []), "limit", "100000"]
    command = ["tc", "-n", name, "qdisc", "add", "dev", "net0", "root", "netem", *words]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def _switch(names: list[str], delay: float, rate: float) -> Iterator[None]:
    """Replace the ports of the bridge by TAP devices of a switch in user space."""
    taps = [name.replace("h", "t") for name in names]
    words = [sys.executable, str(_SWITCH), str(delay), str(rate), *taps]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as switch:
        try:
            if switch.stdout is None or not switch.stdout.readline():
                raise AssertionError("the switch did not start")
            for name, tap in zip(names, taps, strict=True):
                _run("ip", "-n", name, "link", "del", "net0")
                _run("ip", "link", "set", tap, "netns", name)
                _run("ip", "-n", name, "link", "set", tap, "name", "net0")
            yield
        finally:
            switch.kill()


def _agent(folder: Path, prefix: str) -> Path:
    path = folder / "agent"
    path.write_text(
        "#!/bin/sh\n"
        "# Runs a command on a host: as ssh does, it joins the words, and a shell there takes them apart.\n"
        "address=$1; shift\n"
        f"exec nsenter --net=/run/netns/{prefix}-$((${{address##*.}} - 1)) unshare --uts --ipc "
        """sh -c 'hostname "host${0##*.}"; exec sh -c "$1"' "$address" "$*"\n""",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def _run(*command: str) -> None:
    for _ in range(50):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not re.search("busy", done.stderr, re.IGNORECASE):
            break
        time.sleep(0.1)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
