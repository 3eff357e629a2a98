"""Clients without the token of a run at its listening sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import wait_until

from hep_core import authenticated_sockets
from hep_core.authenticated_sockets import AuthenticatedListener

TOKEN = b"0123456789abcdef"
#: Messages of clients that do not know the token.
MESSAGES = {
    "nothing": b"",
    "100,000 brackets": b"[" * 100_000,
    "a guess": b"0" * len(TOKEN),
}


@pytest.fixture
def listener() -> Iterator[AuthenticatedListener]:
    listener = AuthenticatedListener(socket.create_server(("127.0.0.1", 0)), TOKEN)
    yield listener
    listener.close()


def connect(listener: AuthenticatedListener, message: bytes) -> socket.socket:
    """A connection of a client that has sent a message."""
    client = socket.create_connection(listener.address)
    client.setblocking(False)
    client.send(message)
    return client


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_client_without_the_token_is_rejected_and_disturbs_no_other(
    listener: AuthenticatedListener, message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(listener, message) as stranger:
        listener.accept(5)
        with connect(listener, TOKEN + b"{}") as friend:
            accepted: list[socket.socket] = []

            def accept() -> bool:
                accepted.extend(listener.accept(1))
                return bool(accepted)

            wait_until(accept, label="the friend is accepted")
            with accepted[0] as connection:
                assert connection.getpeername() == friend.getsockname()
                assert connection.recv(10) == b"{}"
        monkeypatch.setattr(authenticated_sockets.time, "monotonic", lambda: float("inf"))

        assert listener.accept(0) == []

        assert len(listener.sockets) == 1
        stranger.setblocking(True)
        # The connection is reset when some bytes were not read.
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    ("message", "num_waiting"),
    [(b"0" * len(TOKEN), 0), (b"0" * (len(TOKEN) - 1), 1), (TOKEN[:-1], 1)],
)
def test_a_complete_wrong_token_is_rejected_at_once(
    listener: AuthenticatedListener, message: bytes, num_waiting: int
) -> None:
    with connect(listener, message):
        listener.accept(5)
        assert len(listener.sockets) == 2

        assert listener.accept(5) == []

        assert len(listener.sockets) == 1 + num_waiting


@given(message=st.binary(max_size=40))
def test_only_the_token_is_accepted(message: bytes) -> None:
    listener = AuthenticatedListener(socket.create_server(("127.0.0.1", 0)), TOKEN)
    with connect(listener, message):
        connections = [*listener.accept(1), *listener.accept(0)]
        for connection in connections:
            connection.close()
        listener.close()
    assert bool(connections) == message.startswith(TOKEN)


def test_silent_clients_make_room_for_new_ones(listener: AuthenticatedListener) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connect(listener, b""))
            listener.accept(5)
        assert len(listener.sockets) <= 1 + authenticated_sockets._MAX_WAITING
        stack.enter_context(connect(listener, TOKEN))
        listener.accept(5)

        (connection,) = listener.accept(5)

        connection.close()
