"""Replaces ssh for mpirun: sends a command to the task of a Spark job on a host.

It shows the output of the command. Its arguments are the file of the hosts, the name of a host, and
the words of the command. It uses only the standard library, since it runs apart from this package.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

_LONGEST_LINE = 1 << 20
_START_SECONDS = 10.0
# These are the time after which a silent connection is checked, the time between checks [s], and
# the number of checks without an answer after which it ends.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 2}
# The exit status comes behind all output, after this prefix.
_STATUS_PREFIX = b"\0status "


def main(argv: list[str]) -> int:
    """Run the command on the host; returns its exit status, or 1 if the host is lost.

    As with ssh, a shell on the host splits the command into words.
    """
    _, hosts_file, name, *command = argv
    host = json.loads(Path(hosts_file).read_text(encoding="utf-8"))[name]
    try:
        status = _run_on_host(host, " ".join(command))
    except OSError as error:
        status, reason = None, str(error)
    else:
        reason = "its connection ended before the program"
    if status is None:
        sys.stderr.write(f"the executor on {host['name']} ({host['address']}) is lost: {reason}\n")
        return 1
    return status


def _run_on_host(host: dict[str, Any], command: str) -> int | None:
    """Run a command in the task of a host, and show its output while it runs.

    Returns:
        The exit status, or the number of the signal that ended the command; None if the connection
        ended first.
    """
    output = b""
    with socket.create_connection((host["address"], host["port"]), _START_SECONDS) as task:
        task.settimeout(None)
        keep_alive(task)
        task.sendall(host["token"].encode())
        write_line(task, {"command": command})
        while received := task.recv(1 << 16):
            output += received
            end = output.find(_STATUS_PREFIX)
            if end < 0:
                # The last bytes may be the beginning of the prefix.
                end = max(0, len(output) - len(_STATUS_PREFIX))
            sys.stdout.buffer.write(output[:end])
            sys.stdout.buffer.flush()
            output = output[end:]
    _, separator, status = output.partition(_STATUS_PREFIX)
    if not (separator and status):
        return None
    return abs(int(status))


def keep_alive(connection: socket.socket) -> None:
    """Let the system end a connection within about a minute after the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def write_line(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a line of JSON."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def read_line(connection: socket.socket) -> dict[str, Any] | None:
    """Read the first line of JSON; None if the connection ends or falls silent before."""
    with connection.makefile("rb") as lines:
        try:
            message: dict[str, Any] = json.loads(lines.readline(_LONGEST_LINE))
        except (OSError, ValueError):
            return None
        return message


def write_status(connection: socket.socket, status: int) -> None:
    """Send the exit status, after all output."""
    with contextlib.suppress(OSError):
        # The other end may be gone.
        connection.sendall(_STATUS_PREFIX + str(status).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv))
