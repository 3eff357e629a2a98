"""The compiled server of the ranks of other hosts; without Python's lock.

`serve`, the loop of a thread, answers the requests of partners.

A partner locks a record, gets it, puts it and unlocks it. Meanwhile the thread has the mutex on
behalf of the partner, also of a partner that is lost, and never waits for a mutex that is not free:
the answer is then `BUSY`.
"""

from __future__ import annotations

from select import POLLIN, POLLOUT
from typing import Any, NamedTuple

import numba
import numpy as np

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
    fetch_and_add,
    init_head,
    lock,
    read,
    try_lock,
    unlock,
    without_gil,
)
from training.transports.messages import (
    AVERAGE,
    BROKEN,
    EVENTS,
    FETCH_AND_ADD,
    GET,
    HEADER,
    HEADER_BYTES,
    LOCK,
    LOCKED,
    LOST,
    NUM_INDICES,
    NUM_RECEIVED,
    PUT,
    READ,
    RETURNED_EVENTS,
    SENT,
    TO_SEND,
    VECTOR,
    WAITING,
    ask,
    poll,
    prepare,
    receive,
    send_remaining,
)
from training.transports.pushes import INDEX


class Served(NamedTuple):
    """The memory of a rank, for compiled code: its records one after the other.

    A record is a head (mutex and counters), then its rows.
    """

    memory: Array
    """Its bytes."""
    values: Array
    """The same bytes, as elements of the vectors' type."""
    sizes: Array
    """(num_records,): the number of elements in a row of each record."""
    strides: Array
    """(2,) from the beginning of a record to the next one, and from a row to the next [bytes]."""
    half: Array
    """(1,) 0.5 in the type of the elements; 0 for integers, which are never averaged."""


class Connections(NamedTuple):
    """Connections with partners, one a row.

    The last row has no poll entry, and is for the requests of this rank.
    """

    polled: Array
    """(n, POLL_WORDS) int16: the poll entries of the n connections."""
    messages: Array
    """(n + 1, message_bytes) uint8: request or answer of each connection."""
    progress: Array
    """(n + 1, NUM_PROGRESS) int64: how far each message has come."""
    indices: Array
    """(n + 1, largest record) int64: elements of the locked record that each partner got."""


@without_gil
def _head_of(served: Served, record: int) -> Array:
    """Return the head of a record, (HEAD_BYTES,) uint8, as a view."""
    start = record * served.strides[0]
    return served.memory[start : start + HEAD_BYTES]


@without_gil
def _row_of(served: Served, record: int, row: int) -> Array:
    """Return a row of a record, (size of the record,), as a view."""
    # Position of the row in bytes, then in elements.
    start = HEAD_BYTES + record * served.strides[0] + row * served.strides[1]
    first = start // served.values.itemsize
    return served.values[first : first + served.sizes[record]]


@without_gil
def _answer(served: Served, message: Array, progress: Array, indices: Array) -> int:
    """Do what a complete request asks, and overwrite its message by the answer.

    Args:
        served: The memory of this rank.
        message: The request: header, then body.
        progress: (NUM_PROGRESS,) of the connection; LOCK, GET and UNLOCK change it.
        indices: Elements that the last GET named, for the PUT that follows it.

    Returns:
        The number of bytes of the answer; 0 for requests that have none.
    """
    header = message[:HEADER_BYTES].view(HEADER)[0]
    kind, record = header.kind, header.record
    head, vector = _head_of(served, record), _row_of(served, record, 0)
    body = message[HEADER_BYTES:].view(served.values.dtype)
    state, body_bytes = DONE, 0
    if kind == AVERAGE:
        # The body is the partner's vector, and becomes the difference that the partner subtracts.
        lock(head)
        if add_half_difference(vector, body[: vector.size], served.half):
            counters_of(head)[RECEIVED] += 1
            state, body_bytes = VECTOR, vector.nbytes
        else:
            state = REFUSED
        unlock(head)
    elif kind == READ:
        read(body, vector, head, np.zeros(1))
        state, body_bytes = VECTOR, vector.nbytes
    elif kind == FETCH_AND_ADD:
        header.amount = fetch_and_add(header.element, header.amount, vector, head)
    elif kind == LOCK:
        if try_lock(head):
            progress[LOCKED] = 1 + record
        else:
            state = BUSY
    elif kind == GET:
        _remember_indices(header.num_indices, message, progress, indices)
        num_copied = _copy_rows(served, record, header.num_rows, body, progress, indices, False)
        state, body_bytes = VECTOR, num_copied * served.values.itemsize
        header.clock = counters_of(head)[CLOCK]
    elif kind == PUT:
        _copy_rows(served, record, header.num_rows, body, progress, indices, True)
        counters_of(head)[CLOCK] = header.clock
        return 0
    else:  # UNLOCK
        progress[LOCKED] = 0
        unlock(head)
        return 0
    header.kind = state
    header.body_bytes = body_bytes
    return HEADER_BYTES + body_bytes


@without_gil
def _remember_indices(num_indices: int, message: Array, progress: Array, indices: Array) -> None:
    """Copy the elements that a GET names from its body, for the PUT that follows it.

    `num_indices`: their number; -1 for all elements, which a GET does not name.
    """
    progress[NUM_INDICES] = num_indices
    named = message[HEADER_BYTES:].view(INDEX)
    for k in range(num_indices):
        indices[k] = named[k]


@without_gil
def _copy_rows(
    served: Served,
    record: int,
    num_rows: int,
    body: Array,
    progress: Array,
    indices: Array,
    writes_record: bool,
) -> int:
    """Copy elements of the first rows of a record, one row after the other; return their number.

    `body`: has these elements without gaps. `progress`, `indices`: which elements of each row.
    `writes_record`: whether they are copied from the body into the record, else the other way.
    """
    copies_all = progress[NUM_INDICES] < 0
    num_copied = 0
    for row in range(num_rows):
        vector = _row_of(served, record, row)
        row_length = vector.size if copies_all else progress[NUM_INDICES]
        for k in range(row_length):
            element = k if copies_all else indices[k]
            if writes_record:
                vector[element] = body[num_copied + k]
            else:
                body[num_copied + k] = vector[element]
        num_copied += row_length
    return num_copied


@without_gil
def finish_average(message: Array, vector: Array, head: Array) -> None:
    """Apply the answer to an average with another host: subtract what the partner's vector gained.

    An answer without a vector means that the average was refused, which is counted.

    `message`: the answer. `vector`, `head`: the record of this rank.
    """
    header = message[:HEADER_BYTES].view(HEADER)[0]
    counters = counters_of(head)
    lock(head)
    if header.kind == VECTOR:
        difference = message[HEADER_BYTES:].view(vector.dtype)
        for k in range(vector.size):
            vector[k] -= difference[k]
        counters[BEGUN] += 1
    else:
        counters[NUM_REFUSED] += 1
    unlock(head)


@without_gil
def serve(connections: Connections, served: Served) -> None:
    """Answer the requests of partners until all connections are closed."""
    polled = connections.polled
    num_open = polled.shape[0]
    while num_open:
        # -1: wait without a limit of time.
        poll(polled.ctypes.data, polled.shape[0], -1)
        for slot in range(polled.shape[0]):
            if not polled[slot, RETURNED_EVENTS]:
                continue
            state = _serve_connection(connections, slot, served)
            if state == LOST:
                # The poll ignores entries with the descriptor -1.
                polled[slot].view(np.int32)[0] = -1
                polled[slot, RETURNED_EVENTS] = 0
                num_open -= 1


@without_gil
def _serve_connection(connections: Connections, slot: int, served: Served) -> int:
    """Send and receive on a connection what is possible without waiting.

    A complete request is answered at once. If the connection is broken, the record that its other
    side had locked is unlocked.

    Returns:
        LOST if it is broken; else DONE after an answer, or WAITING.
    """
    entry = connections.polled[slot]
    message, progress = connections.messages[slot], connections.progress[slot]
    descriptor, events = entry.view(np.int32)[0], entry[RETURNED_EVENTS]
    if events & POLLOUT and send_remaining(descriptor, message, progress):
        entry[EVENTS] = POLLIN
    state = WAITING
    if events & (POLLIN | BROKEN):
        state = receive(descriptor, message, progress, events)
    if state == DONE:
        progress[TO_SEND] = _answer(served, message, progress, connections.indices[slot])
        progress[NUM_RECEIVED] = 0
        progress[SENT] = 0
        # The other side sends no request before it has the answer, so there is nothing to read.
        is_sent = progress[TO_SEND] == 0 or send_remaining(descriptor, message, progress)
        entry[EVENTS] = POLLIN if is_sent else POLLOUT
    elif state == LOST and progress[LOCKED]:
        unlock(_head_of(served, progress[LOCKED] - 1))
    return state


def compile_all(dtype: type[np.generic]) -> None:
    """Compile the kernels of vectors of a type, without calling them.

    Numba compiles a function for the types of its arguments. So arrays of the right types stand for
    the arguments, whatever their sizes.
    """
    vector = np.zeros(1, dtype)
    head = np.zeros(HEAD_BYTES, np.uint8)
    seconds = np.zeros(1)
    messages = np.zeros((1, 1), np.uint8)
    progress = np.zeros((1, 1), np.int64)
    connections = Connections(np.zeros((1, 1), np.int16), messages, progress, progress)
    served = Served(head, vector, progress[0], progress[0], vector)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (init_head, (head,)),
        (lock, (head,)),
        (try_lock, (head,)),
        (unlock, (head,)),
        (read, (vector, vector, head, seconds)),
        (add, (vector, vector, head, seconds)),
        (fetch_and_add, (0, 0, vector, head)),
        (average, (vector, head, vector, head, vector, seconds, True)),
        (finish_average, (messages[0], vector, head)),
        (prepare, (messages[0], progress[0])),
        (send_remaining, (0, messages[0], progress[0])),
        (ask, (0, connections.polled[0], messages[0], progress[0], 0, True)),
        (serve, (connections, served)),
    ]
    for function, arguments in calls:
        kinds = [numba.typeof(argument) for argument in arguments]  # type: ignore[no-untyped-call]
        function.compile(tuple(kinds))
