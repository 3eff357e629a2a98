"""Listening sockets of a run: whoever connects shows the token of the run first, and in time, or is sent away."""

from __future__ import annotations

import hmac
import select
import socket
import time
from collections.abc import Collection
from typing import Any, Final

#: Time for a stranger to show the token [s].
_SECONDS: Final = 10.0
#: Number of strangers that may wait at the same time; the oldest makes room.
_MOST: Final = 64


class AuthenticatedListener:
    """A listening socket. Nothing of a stranger is read but as many bytes as the token has.

    `server`: the socket, which listens; the door closes it. `most`: number of strangers that may wait; at least as many
    as may come at once.
    """

    def __init__(self, server: socket.socket, token: bytes, *, most: int = _MOST) -> None:
        self._server, self._token, self._most = server, token, max(most, _MOST)
        self._server.setblocking(False)
        self._strangers: dict[socket.socket, tuple[bytes, float]] = {}
        self.address: Any = server.getsockname()

    @property
    def sockets(self) -> list[socket.socket]:
        """What to select for reading."""
        return [self._server, *self._strangers]

    def accept(self, seconds: float) -> list[socket.socket]:
        """Wait for news up to some time; returns the connections that have shown the token."""
        return self.accept_from(select.select(self.sockets, [], [], seconds)[0])

    def accept_from(self, ready: Collection[socket.socket]) -> list[socket.socket]:
        """Read from some of the sockets; returns the connections that have shown the token."""
        for stranger in self._strangers.keys() & set(ready):
            self._read(stranger)
        known = []
        for stranger, (shown, deadline) in list(self._strangers.items()):
            if hmac.compare_digest(shown, self._token):
                stranger.setblocking(True)
                known.append(stranger)
            elif len(shown) < len(self._token) and time.monotonic() < deadline:
                continue
            else:
                stranger.close()
            del self._strangers[stranger]
        if self._server in ready:
            self._admit()
        return known

    def _read(self, stranger: socket.socket) -> None:
        """Take in more of the token; who has closed the connection is out of time."""
        shown, deadline = self._strangers[stranger]
        try:
            more = stranger.recv(len(self._token) - len(shown))
        except OSError:
            more = b""
        self._strangers[stranger] = shown + more, deadline if more else 0.0

    def _admit(self) -> None:
        try:
            stranger, _ = self._server.accept()
        except OSError:
            # It is gone already, or there are too many open files.
            return
        stranger.setblocking(False)
        if len(self._strangers) >= self._most:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        self._strangers[stranger] = b"", time.monotonic() + _SECONDS

    def close(self) -> None:
        """Close the socket and send away who waits."""
        for each in self.sockets:
            each.close()
        self._strangers.clear()
