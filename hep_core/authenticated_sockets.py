"""Listening sockets of a run, which admit only clients that send the token of the run in time."""

from __future__ import annotations

import hmac
import select
import socket
import time
from collections.abc import Collection
from typing import Any, Final, NamedTuple

#: Time for a client to show the token [s].
_SECONDS: Final = 10.0
#: Number of clients that may wait at the same time; a new one replaces the oldest.
_MAX_WAITING: Final = 64


class _Handshake(NamedTuple):
    """The state of a client that has connected and not yet sent the whole token."""

    received: bytes
    """The bytes of the token that a client has sent."""
    deadline: float
    """Time by `time.monotonic` at which the connection is closed [s]."""


class AuthenticatedListener:
    """A listening socket whose clients must send a secret token before they are admitted.

    It reads no more bytes of a client than the token has, so the first bytes of the protocol stay
    in the socket. A client that sends a wrong token, or takes more than ten seconds, is
    disconnected.

    Args:
        server: The listening socket, which `close` closes.
        token: The bytes that a client must send first.
        max_waiting: Number of clients that may wait with an incomplete token; at least as many as
            may come at once.
    """

    def __init__(
        self, server: socket.socket, token: bytes, *, max_waiting: int = _MAX_WAITING
    ) -> None:
        self._server = server
        self._server.setblocking(False)
        self._token = token
        self._max_waiting = max(max_waiting, _MAX_WAITING)
        self._handshakes: dict[socket.socket, _Handshake] = {}
        self.address: Any = server.getsockname()
        """The address of the listening socket."""

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets to select for reading: the listening one and those of waiting clients."""
        return [self._server, *self._handshakes]

    def accept(self, seconds: float) -> list[socket.socket]:
        """Wait up to `seconds` for clients; returns the connections that have sent the token."""
        ready, _, _ = select.select(self.sockets, [], [], seconds)
        return self.accept_from(ready)

    def accept_from(self, ready: Collection[socket.socket]) -> list[socket.socket]:
        """Read from sockets that are ready; returns the connections that have sent the token.

        It closes those of a wrong token or past their time. If the listening socket is ready, a new
        client begins to wait.
        """
        for client in self._handshakes.keys() & set(ready):
            self._read(client)
        accepted = []
        for client, handshake in list(self._handshakes.items()):
            # This comparison takes the same time for any bytes, so the time shows nothing of them.
            if hmac.compare_digest(handshake.received, self._token):
                client.setblocking(True)
                accepted.append(client)
                del self._handshakes[client]
                continue
            # A complete token that was not accepted is wrong.
            is_complete = len(handshake.received) == len(self._token)
            if is_complete or time.monotonic() >= handshake.deadline:
                client.close()
                del self._handshakes[client]
        if self._server in ready:
            self._add_client()
        return accepted

    def _read(self, client: socket.socket) -> None:
        """Read more of the token of a client, and keep the bytes in its handshake.

        A client that has closed the connection gets a deadline in the past.
        """
        received, deadline = self._handshakes[client]
        try:
            new_bytes = client.recv(len(self._token) - len(received))
        except OSError:
            new_bytes = b""
        if not new_bytes:
            deadline = 0.0
        self._handshakes[client] = _Handshake(received + new_bytes, deadline)

    def _add_client(self) -> None:
        """Accept a connection, which must now send the token; it may replace the oldest one."""
        try:
            client, _ = self._server.accept()
        except OSError:
            # The client is gone already, or there are too many open files.
            return
        client.setblocking(False)
        if len(self._handshakes) >= self._max_waiting:
            # The first key of a dictionary is the oldest.
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.close()
        self._handshakes[client] = _Handshake(b"", time.monotonic() + _SECONDS)

    def close(self) -> None:
        """Close the socket and the connections of waiting clients."""
        for open_socket in self.sockets:
            open_socket.close()
        self._handshakes.clear()
