"""Strangers at the listening sockets of a run."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import wait_until

from hep_core import authenticated_sockets as doors
from hep_core.authenticated_sockets import AuthenticatedListener

TOKEN = b"0123456789abcdef"
#: What a stranger sends; the connection stays open.
WORDS = {
    "nothing": b"",
    "100,000 brackets": b"[" * 100_000,
    "a guess": b"0" * len(TOKEN),
}


@pytest.fixture
def door() -> Iterator[AuthenticatedListener]:
    authenticated_listener = AuthenticatedListener(socket.create_server(("127.0.0.1", 0)), TOKEN)
    yield authenticated_listener
    authenticated_listener.close()


def come(door: AuthenticatedListener, message: bytes) -> socket.socket:
    """A stranger comes and speaks."""
    stranger = socket.create_connection(door.address)
    stranger.setblocking(False)
    stranger.send(message)
    return stranger


@pytest.mark.parametrize("message", WORDS.values(), ids=WORDS)
def test_a_client_without_the_token_is_rejected_and_disturbs_no_other(
    door: AuthenticatedListener, message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with come(door, message) as stranger:
        door.accept(5)
        with come(door, TOKEN + b"{}") as friend:
            expected: list[socket.socket] = []
            wait_until(
                lambda: bool(expected.extend(door.accept(1)) or expected),
                label="the friend is let in",
            )
            (let_in,) = expected
            with let_in:
                assert let_in.getpeername() == friend.getsockname()
                assert let_in.recv(10) == b"{}"
        monkeypatch.setattr(doors.time, "monotonic", lambda: float("inf"))
        assert door.accept(0) == []
        assert len(door.sockets) == 1
        stranger.setblocking(True)
        # The connection is reset when something was not read.
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    ("message", "stays"),
    [(b"0" * len(TOKEN), False), (b"0" * (len(TOKEN) - 1), True), (TOKEN[:-1], True)],
)
def test_a_complete_wrong_token_is_rejected_at_once(
    door: AuthenticatedListener, message: bytes, stays: bool
) -> None:
    with come(door, message):
        door.accept(5)
        assert len(door.sockets) == 2
        assert door.accept(5) == []
        assert len(door.sockets) == 1 + stays


@given(words=st.binary(max_size=40))
def test_only_the_token_is_accepted(message: bytes) -> None:
    door = AuthenticatedListener(socket.create_server(("127.0.0.1", 0)), TOKEN)
    with come(door, message):
        results = [*door.accept(1), *door.accept(0)]
        for result in results:
            result.close()
        door.close()
    assert bool(results) == message.startswith(TOKEN)


def test_silent_clients_make_room_for_new_ones(door: AuthenticatedListener) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(come(door, b""))
            door.accept(5)
        assert len(door.sockets) <= 1 + doors._MAX_WAITING
        stack.enter_context(come(door, TOKEN))
        door.accept(5)
        (expected,) = door.accept(5)
        expected.close()
