"""What mpirun calls instead of ssh: sends a command to the task of a Spark job on a host, and shows its output.

Its arguments are the file of the hosts, the name of a host, and the words of the command. It uses the standard library
only, since it runs apart from this package.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import sys
from pathlib import Path
from typing import Any, TextIO

_LONGEST_LINE = 1 << 20
_START_SECONDS = 10.0
_BEFORE_STATUS = b"\0status "


def main(argv: list[str]) -> int:
    """Run the command on the host; returns its exit status."""
    _, table, name, *words = argv
    host = json.loads(Path(table).read_text(encoding="utf-8"))[name]
    # As ssh does: a shell on the host takes the words apart.
    command = " ".join(words)
    output = b""
    with socket.create_connection((host["address"], host["port"]), _START_SECONDS) as task:
        task.settimeout(None)
        write_line(task, {"token": host["token"], "command": command})
        while part := task.recv(1 << 16):
            output += part
            shown, separator, status = output.partition(_BEFORE_STATUS)
            # Keep back what may be the beginning of the status.
            end = len(shown) if separator else max(0, len(output) - len(_BEFORE_STATUS))
            sys.stdout.buffer.write(output[:end])
            sys.stdout.buffer.flush()
            output = output[end:]
    _, separator, status = output.partition(_BEFORE_STATUS)
    return abs(int(status)) if separator and status else 1


def write_line(connection: socket.socket, content: dict[str, Any]) -> None:
    """Send a line of JSON."""
    connection.sendall(json.dumps(content).encode() + b"\n")


def read_line(lines: TextIO, token: str) -> dict[str, Any] | None:
    """A line of JSON; None if it is none, or if its sender does not know the token."""
    try:
        content = json.loads(lines.readline(_LONGEST_LINE))
        is_known = hmac.compare_digest(str(content["token"]), token)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content if is_known else None


def write_status(connection: socket.socket, status: int) -> None:
    """Send the exit status, after all output."""
    with contextlib.suppress(OSError):
        # The agent may be gone.
        connection.sendall(_BEFORE_STATUS + str(status).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv))
