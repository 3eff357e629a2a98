"""Messages between ranks of different hosts: their format, and how they travel.

A message is a `HEADER`, then as many bytes as the header says. A connection carries one request at
a time, and then its answer; `UNLOCK` and `PUT` have none. Every socket has one reader and one
writer: `serving.serve` answers the requests of partners, and `ask` sends a request of this rank and
receives its answer.

Only a poll waits for sockets. All functions run without Python's lock.
"""

from __future__ import annotations

import socket
from select import POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT
from typing import Final

import numpy as np
from numba import types

from training.transports.kernels import DONE, Array, external, without_gil

#: The fields at the beginning of a request and of its answer; the body follows them.
HEADER: Final = np.dtype(
    [
        ("kind", np.int64),  # of the request, or the state that answers it
        ("record", np.int64),
        ("element", np.int64),  # of FETCH_AND_ADD
        ("amount", np.int64),  # that FETCH_AND_ADD adds; in its answer the value before
        ("num_rows", np.int64),  # of GET and PUT
        ("num_indices", np.int64),  # of GET, in the body; -1 for all elements
        ("clock", np.int64),  # of the record, in PUT and in the answer to GET
        ("body_bytes", np.int64),  # that follow the header
    ]
)
HEADER_BYTES: Final = HEADER.itemsize
#: Kinds of requests. An answer has one of the states of `kernels` as its kind, or `VECTOR` where a
#: vector follows.
AVERAGE, READ, FETCH_AND_ADD, LOCK, UNLOCK, GET, PUT, VECTOR = range(11, 19)
#: Further states of a request: no answer yet; and the other side is gone.
WAITING, LOST = 21, 22

#: Positions in the progress of a connection, and their number: bytes sent, bytes to send, bytes
#: received; 1 + the record that is locked for the other side, or 0; and the number of its elements
#: that the other side got, -1 for all.
SENT, TO_SEND, NUM_RECEIVED, LOCKED, NUM_INDICES, NUM_PROGRESS = range(6)

#: Words of a poll entry, 16 bits each, as in `struct pollfd`: the descriptor in two, then the
#: requested and the returned events.
POLL_WORDS: Final = 4
#: Positions of the requested and of the returned events.
EVENTS, RETURNED_EVENTS = 2, 3
#: Returned events that mean a broken connection.
BROKEN: Final = POLLERR | POLLHUP | POLLNVAL
_AT_ONCE: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
poll = external("poll", types.int32, types.uintp, types.uintp, types.int32)
_recv = external("recv", types.intp, types.int32, types.uintp, types.uintp, types.int32)
_send = external("send", types.intp, types.int32, types.uintp, types.uintp, types.int32)


def poll_entry(descriptor: int) -> Array:
    """Return a poll entry, (POLL_WORDS,) int16, that waits for something to read.

    `descriptor`: the number by which the system knows the socket.
    """
    entry = np.zeros(POLL_WORDS, np.int16)
    entry.view(np.int32)[0] = descriptor
    entry[EVENTS] = POLLIN
    return entry


@without_gil
def send_remaining(descriptor: int, message: Array, progress: Array) -> bool:
    """Send what the system takes of a message without waiting; return whether all is sent."""
    num_sent = _send(
        descriptor,
        message.ctypes.data + progress[SENT],
        progress[TO_SEND] - progress[SENT],
        _AT_ONCE,
    )
    if num_sent > 0:
        progress[SENT] += num_sent
    return bool(progress[SENT] == progress[TO_SEND])


@without_gil
def receive(descriptor: int, message: Array, progress: Array, returned_events: int) -> int:
    """Receive what has arrived of a message without waiting.

    `returned_events`: those of the poll, which tell a broken connection from one without data.

    Returns:
        DONE for a complete message, WAITING for an incomplete one, or LOST.
    """
    while True:
        # The header comes first, since it says how long the body is.
        num_expected = HEADER_BYTES
        if progress[NUM_RECEIVED] >= HEADER_BYTES:
            num_expected += message[:HEADER_BYTES].view(HEADER)[0].body_bytes
            if progress[NUM_RECEIVED] == num_expected:
                return DONE
        num_new = _recv(
            descriptor,
            message.ctypes.data + progress[NUM_RECEIVED],
            num_expected - progress[NUM_RECEIVED],
            _AT_ONCE,
        )
        # 0 bytes mean that the other side has closed; less, that none is there or an error.
        if num_new <= 0:
            return LOST if num_new == 0 or returned_events & BROKEN else WAITING
        progress[NUM_RECEIVED] += num_new


@without_gil
def prepare(message: Array, progress: Array) -> None:
    """Set the progress of a request, whose header and body are written, to its beginning."""
    progress[SENT] = 0
    progress[TO_SEND] = HEADER_BYTES + message[:HEADER_BYTES].view(HEADER)[0].body_bytes
    progress[NUM_RECEIVED] = 0


@without_gil
def ask(
    descriptor: int,
    polled: Array,
    message: Array,
    progress: Array,
    milliseconds: int,
    has_answer: bool,
) -> int:
    """Send the rest of a request and receive its answer, into the same message.

    After WAITING, a further call continues where this one stopped.

    Args:
        descriptor: The number of the socket.
        polled: (POLL_WORDS,) room for a poll entry.
        message: The request, then its answer.
        progress: (NUM_PROGRESS,) how far both have come; see `prepare`.
        milliseconds: Longest time to wait for an event.
        has_answer: Whether the request has an answer; else it is done once it is sent.

    Returns:
        DONE, LOST, or WAITING after this time without any event.
    """
    polled.view(np.int32)[0] = descriptor
    while True:
        is_sent = progress[SENT] == progress[TO_SEND]
        if not is_sent:
            is_sent = send_remaining(descriptor, message, progress)
        if is_sent and not has_answer:
            return DONE
        # A request that is not sent also waits for room in the socket.
        polled[EVENTS] = POLLIN if is_sent else POLLIN | POLLOUT
        if poll(polled.ctypes.data, 1, milliseconds) <= 0:
            return WAITING
        if polled[RETURNED_EVENTS] & (POLLIN | BROKEN):
            state = receive(descriptor, message, progress, polled[RETURNED_EVENTS])
            if state != WAITING:
                return state
