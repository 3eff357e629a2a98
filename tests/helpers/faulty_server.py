"""An HTTP server of our own that serves ranges of files, and fails when told to."""

from __future__ import annotations

import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

UNAVAILABLE: Final = "503"
DROPPED: Final = "dropped"
SILENT: Final = "silent"
#: The server asks for other credentials.
REFUSED: Final = "401"


class FaultyServer(ThreadingHTTPServer):
    """Serves the files of a folder with ranges, as real servers do, and fails when told to."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._fault = ""
        self._num_failures = 0
        self._num_good = 0

    def fail(self, fault: str, times: int, *, num_good: int = 0) -> None:
        """Answer a number of requests with an error, after a number that succeed."""
        with self._lock:
            self._fault = fault
            self._num_failures = times
            self._num_good = num_good

    def fault_of(self, method: str, byte_range: str | None) -> str:
        """The fault of a request; empty if it succeeds."""
        with self._lock:
            self.requests.append((method, byte_range or ""))
            if self._num_failures <= 0:
                return ""
            if self._num_good > 0:
                self._num_good -= 1
                return ""
            self._num_failures -= 1
            return self._fault

    @property
    def faults_left(self) -> int:
        """Requests that are still to fail."""
        return self._num_failures

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of whole files and of `Range: bytes=a-b`."""

    server: FaultyServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass

    def _answer(self) -> None:
        asked = self.headers.get("Range")
        fault = self.server.fault_of(self.command, asked)
        path = self.server.folder / self.path.split("?")[0].lstrip("/")
        if fault == DROPPED:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == SILENT:
            self.close_connection = True
            self.server.ended.wait(60)
        elif fault in {UNAVAILABLE, REFUSED}:
            self._send(int(fault), b"")
        elif not path.is_file():
            self._send(404, b"")
        else:
            file_bytes = path.read_bytes()
            if asked is None:
                self._send(200, file_bytes)
                return
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
            assert match is not None
            first, last = int(match[1]), int(match[2])
            last = min(last, len(file_bytes) - 1)
            self._send(
                206,
                file_bytes[first : last + 1],
                {"Content-Range": f"bytes {first}-{last}/{len(file_bytes)}"},
            )

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            **self.server.headers,
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
