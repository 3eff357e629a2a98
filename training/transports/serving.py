"""The compiled server of the ranks of other hosts, and their requests; without Python's lock.

A message is a header of `HEADER_BYTES`, then as many bytes as the header says. A connection carries one request at a
time, and then its answer; `UNLOCK` and `PUT` have none. Every socket has one reader and one writer:

 * `serve`, the loop of a thread, answers the requests of partners;
 * `ask` sends a request of this rank, and takes its answer.

A partner locks a record, gets it, puts it and unlocks it. The thread has the mutex for the partner meanwhile, also that
of a partner that is lost, and never waits for one that somebody else has: the answer is then `BUSY`.
"""

from __future__ import annotations

import socket
from select import POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numba import types

from training.transports.kernels import (
    BEGUN,
    BUSY,
    CLOCK,
    DONE,
    HEAD_BYTES,
    NUM_REFUSED,
    RECEIVED,
    REFUSED,
    Array,
    add,
    add_half_difference,
    average,
    counters_of,
    external,
    fetch_and_add,
    init_head,
    lock,
    read,
    try_lock,
    unlock,
    without_gil,
)

HEADER_BYTES: Final = 64
#: Words of a header, int64 each: the kind of message, the record, an element or how many rows, a number, and the bytes
#: that follow.
KIND, RECORD, PLACE, NUMBER, LENGTH = range(5)
#: Kinds of requests; answers have the states of `kernels`, or `VECTOR` with a vector.
AVERAGE, READ, FETCH_AND_ADD, LOCK, UNLOCK, GET, PUT, VECTOR = range(11, 19)
#: Further states of a request.
WAITING, LOST = 21, 22

#: Progress of a connection: bytes sent, to send and received; 1 + the record that is locked for the other side; and how
#: many elements it has got of it, -1 for all.
SENT, TO_SEND, GOT, LOCKED, NUM_WITHIN, NUM_PROGRESS = range(6)

#: Words of a poll entry, 16 bits each, as in `struct pollfd`: the descriptor in two, the wanted and the found events.
POLL_WORDS: Final = 4
_EVENTS, _FOUND = 2, 3
_BROKEN: Final = POLLERR | POLLHUP | POLLNVAL
_AT_ONCE: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_poll = external("poll", types.int32, types.uintp, types.uintp, types.int32)
_recv = external("recv", types.intp, types.int32, types.uintp, types.uintp, types.int32)
_send = external("send", types.intp, types.int32, types.uintp, types.uintp, types.int32)


class Served(NamedTuple):
    """The memory of a rank, for compiled code."""

    memory: Array
    """Its bytes."""
    values: Array
    """The same, as elements."""
    sizes: Array
    """(num_records,): the number of elements in a row of each record."""
    distances: Array
    """From the beginning of a record to the next one, and from a row to the next one [bytes]."""
    half: Array
    """0.5 of the type of the elements; 0 for integers."""


class Connections(NamedTuple):
    """Connections with partners, one a row; the last row has no poll entry, and is for the requests of this rank."""

    polled: Array
    messages: Array
    """Message of each, in bytes."""
    progress: Array
    within: Array
    """Elements of the locked record that each has got."""


def poll_entry(descriptor: int) -> Array:
    """A poll entry that waits for something to read."""
    entry = np.zeros(POLL_WORDS, np.int16)
    entry.view(np.int32)[0] = descriptor
    entry[_EVENTS] = POLLIN
    return entry


@without_gil
def _head_of(served: Served, record: int) -> Array:
    start = record * served.distances[0]
    return served.memory[start : start + HEAD_BYTES]


@without_gil
def _row_of(served: Served, record: int, row: int) -> Array:
    start = HEAD_BYTES + record * served.distances[0] + row * served.distances[1]
    first = start // served.values.itemsize
    return served.values[first : first + served.sizes[record]]


@without_gil
def _answer(served: Served, message: Array, progress: Array, within: Array) -> int:
    """Do what a complete request asks, and write the answer into it; returns the number of its bytes."""
    header = message[:HEADER_BYTES].view(np.int64)
    kind, record = header[KIND], header[RECORD]
    head, own = _head_of(served, record), _row_of(served, record, 0)
    body = message[HEADER_BYTES:].view(served.values.dtype)
    state, length = DONE, 0
    if kind == AVERAGE:
        lock(head)
        if add_half_difference(own, body[: own.size], served.half):
            counters_of(head)[RECEIVED] += 1
            state, length = VECTOR, own.nbytes
        else:
            state = REFUSED
        unlock(head)
    elif kind == READ:
        read(body, own, head, np.zeros(1))
        state, length = VECTOR, own.nbytes
    elif kind == FETCH_AND_ADD:
        header[NUMBER] = fetch_and_add(header[PLACE], header[NUMBER], own, head)
    elif kind == LOCK:
        if try_lock(head):
            progress[LOCKED] = 1 + record
        else:
            state = BUSY
    elif kind == GET:
        _copy_within(header, message, progress, within)
        length = _copy_rows(served, header, body, progress, within, False) * served.values.itemsize
        state, header[NUMBER] = VECTOR, counters_of(head)[CLOCK]
    elif kind == PUT:
        _copy_rows(served, header, body, progress, within, True)
        counters_of(head)[CLOCK] = header[NUMBER]
        return 0
    else:
        progress[LOCKED] = 0
        unlock(head)
        return 0
    header[KIND], header[LENGTH] = state, length
    return HEADER_BYTES + length


@without_gil
def _copy_within(header: Array, message: Array, progress: Array, within: Array) -> None:
    """Keep the elements that a request names."""
    progress[NUM_WITHIN] = header[NUMBER]
    named = message[HEADER_BYTES:].view(np.int64)
    for k in range(header[NUMBER]):
        within[k] = named[k]


@without_gil
def _copy_rows(
    served: Served, header: Array, body: Array, progress: Array, within: Array, puts: bool
) -> int:
    """Copy elements of the rows of a record, one row after the other; returns their number."""
    at = 0
    for row in range(header[PLACE]):
        own = _row_of(served, header[RECORD], row)
        number = progress[NUM_WITHIN] if progress[NUM_WITHIN] >= 0 else own.size
        for k in range(number):
            element = within[k] if progress[NUM_WITHIN] >= 0 else k
            if puts:
                own[element] = body[at + k]
            else:
                body[at + k] = own[element]
        at += number
    return at


@without_gil
def take_answer(message: Array, own: Array, head: Array) -> None:
    """Take the answer to an average: this side loses what the other gained."""
    counters = counters_of(head)
    lock(head)
    if message[:HEADER_BYTES].view(np.int64)[KIND] == VECTOR:
        difference = message[HEADER_BYTES:].view(own.dtype)
        for k in range(own.size):
            own[k] -= difference[k]
        counters[BEGUN] += 1
    else:
        counters[NUM_REFUSED] += 1
    unlock(head)


@without_gil
def _send_rest(descriptor: int, message: Array, progress: Array) -> bool:
    """Send the rest of a message without waiting; returns whether all of it is sent."""
    done = _send(
        descriptor,
        message.ctypes.data + progress[SENT],
        progress[TO_SEND] - progress[SENT],
        _AT_ONCE,
    )
    if done > 0:
        progress[SENT] += done
    return bool(progress[SENT] == progress[TO_SEND])


@without_gil
def _receive(descriptor: int, message: Array, progress: Array, found: int) -> int:
    """Receive without waiting; returns DONE for a complete message, WAITING, or LOST."""
    while True:
        wanted = HEADER_BYTES
        if progress[GOT] >= HEADER_BYTES:
            wanted += message[:HEADER_BYTES].view(np.int64)[LENGTH]
            if progress[GOT] == wanted:
                return DONE
        got = _recv(
            descriptor, message.ctypes.data + progress[GOT], wanted - progress[GOT], _AT_ONCE
        )
        if got <= 0:
            return LOST if got == 0 or found & _BROKEN else WAITING
        progress[GOT] += got


@without_gil
def prepare(
    kind: int, record: int, place: int, number: int, length: int, message: Array, progress: Array
) -> None:
    """Write the header of a request."""
    header = message[:HEADER_BYTES].view(np.int64)
    header[KIND], header[RECORD], header[PLACE], header[NUMBER], header[LENGTH] = (
        kind,
        record,
        place,
        number,
        length,
    )
    progress[SENT], progress[TO_SEND], progress[GOT] = 0, HEADER_BYTES + length, 0


@without_gil
def ask(
    descriptor: int,
    polled: Array,
    message: Array,
    progress: Array,
    milliseconds: int,
    is_answered: bool,
) -> int:
    """Send the rest of a request and receive its answer: DONE, LOST, or WAITING after this time without any event."""
    polled.view(np.int32)[0] = descriptor
    while True:
        is_sent = (
            _send_rest(descriptor, message, progress)
            if progress[SENT] < progress[TO_SEND]
            else True
        )
        if is_sent and not is_answered:
            return DONE
        polled[_EVENTS] = POLLIN if is_sent else POLLIN | POLLOUT
        if _poll(polled.ctypes.data, 1, milliseconds) <= 0:
            return WAITING
        if polled[_FOUND] & (POLLIN | _BROKEN):
            state = _receive(descriptor, message, progress, polled[_FOUND])
            if state != WAITING:
                return state


@without_gil
def serve(connections: Connections, served: Served) -> None:
    """Answer the requests of partners until all connections are closed."""
    polled = connections.polled
    num_open = polled.shape[0]
    while num_open:
        _poll(polled.ctypes.data, polled.shape[0], -1)
        for slot in range(polled.shape[0]):
            found = polled[slot, _FOUND]
            if not found:
                continue
            mine, message = connections.progress[slot], connections.messages[slot]
            descriptor = polled[slot].view(np.int32)[0]
            state = WAITING
            if found & POLLOUT and _send_rest(descriptor, message, mine):
                polled[slot, _EVENTS] = POLLIN
            if found & (POLLIN | _BROKEN):
                state = _receive(descriptor, message, mine, found)
            if state == DONE:
                mine[GOT], mine[SENT], mine[TO_SEND] = (
                    0,
                    0,
                    _answer(served, message, mine, connections.within[slot]),
                )
                is_sent = mine[TO_SEND] == 0 or _send_rest(descriptor, message, mine)
                polled[slot, _EVENTS] = POLLIN if is_sent else POLLOUT
            elif state == LOST:
                if mine[LOCKED]:
                    unlock(_head_of(served, mine[LOCKED] - 1))
                polled[slot].view(np.int32)[0] = -1
                polled[slot, _FOUND] = 0
                num_open -= 1


def compile_all(dtype: type[np.generic]) -> None:
    """Compile the kernels of vectors of a type, without calling them."""
    own, head, times = np.zeros(1, dtype), np.zeros(HEAD_BYTES, np.uint8), np.zeros(1)
    rows, numbers = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.int64)
    connections = Connections(np.zeros((1, 1), np.int16), rows, numbers, numbers)
    served = Served(head, own, numbers[0], numbers[0], own)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (init_head, (head,)),
        (lock, (head,)),
        (try_lock, (head,)),
        (unlock, (head,)),
        (read, (own, own, head, times)),
        (add, (own, own, head, times)),
        (fetch_and_add, (0, 0, own, head)),
        (average, (own, head, own, head, own, times, True)),
        (take_answer, (rows[0], own, head)),
        (prepare, (0, 0, 0, 0, 0, rows[0], numbers[0])),
        (ask, (0, connections.polled[0], rows[0], numbers[0], 0, True)),
        (serve, (connections, served)),
    ]
    for function, arguments in calls:
        function.compile(tuple(numba.typeof(each) for each in arguments))  # type: ignore[no-untyped-call]
