"""Compiled loops of the averages over sockets; they run without Python's lock, beside the computation.

A message is a header of `HEADER_BYTES`, then nothing or a vector, whose bytes zeros fill up to a multiple of 64. A
connection carries one request at a time, and then its answer. Every socket has one reader and one writer:

 * `serve`, the loop of the communication thread, answers the requests of partners, and takes their answers to averages
   that `begin` has requested;
 * the computing thread sends requests. It also takes the answers to those that it waits for (`ask`), which have
   connections of their own.

A mutex guards the vector and its counters, for the time of one copy or addition; nobody holds it while sending or
receiving, so there is no deadlock.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import numba
import numpy as np
from numba import types

from features.compiling import compiled

Array = Any
"""An array; mypy does not see numba's types."""

HEADER_BYTES: Final = 64
#: Words of a header, int64 each: the kind of message, an element of the vector, and a number.
KIND: Final = 0
PLACE: Final = 1
NUMBER: Final = 2
#: Kinds of requests, ...
AVERAGE: Final = 1
READ: Final = 2
FETCH_AND_ADD: Final = 3
#: ... and of answers: with a vector, without, and none since a vector was not finite.
VECTOR: Final = 4
DONE: Final = 5
REFUSED: Final = 6
#: Further states of a request.
WAITING: Final = 7
LOST: Final = 8
BUSY: Final = 9

#: Counters of a vector: averages by partners and by the owner, those not made since a vector was not finite or a
#: partner was lost, whether the owner waits for its averages, whether the thread shall end, and averages under way.
RECEIVED: Final = 0
BEGUN: Final = 1
NUM_REFUSED: Final = 2
NUM_LOST: Final = 3
IS_DRAINING: Final = 4
IS_ENDING: Final = 5
NUM_UNDER_WAY: Final = 6
NUM_COUNTERS: Final = 7

#: Progress of a connection: bytes sent, to send and received; whether an average is under way, and the other side lost.
SENT: Final = 0
TO_SEND: Final = 1
GOT: Final = 2
UNDER_WAY: Final = 3
IS_LOST: Final = 4
NUM_PROGRESS: Final = 5

#: Words of a poll entry, 16 bits each, as in `struct pollfd`: the descriptor in two, the wanted and the found events.
POLL_WORDS: Final = 4
_EVENTS: Final = 2
_FOUND: Final = 3
_BROKEN: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
_AT_ONCE: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_IN: Final = select.POLLIN
_OUT: Final = select.POLLOUT
_MONOTONIC: Final = time.CLOCK_MONOTONIC

_compiled = partial(compiled, nogil=True)


def _external(name: str, result: types.Type, *arguments: types.Type) -> Callable[..., int]:
    """A function of the C library."""
    return cast("Callable[..., int]", types.ExternalFunction(name, result(*arguments)))


_poll = _external("poll", types.int32, types.uintp, types.uintp, types.int32)
_recv = _external("recv", types.intp, types.int32, types.uintp, types.uintp, types.int32)
_send = _external("send", types.intp, types.int32, types.uintp, types.uintp, types.int32)
_clock_gettime = _external("clock_gettime", types.int32, types.int32, types.uintp)
_init = _external("pthread_mutex_init", types.int32, types.uintp, types.uintp)
_lock = _external("pthread_mutex_lock", types.int32, types.uintp)
_unlock = _external("pthread_mutex_unlock", types.int32, types.uintp)


def poll_entry(descriptor: int) -> Array:
    """A poll entry that waits for something to read."""
    entry = np.zeros(POLL_WORDS, np.int16)
    entry.view(np.int32)[0] = descriptor
    entry[_EVENTS] = _IN
    return entry


@_compiled
def _now() -> float:
    """Seconds of the clock of `time.perf_counter`."""
    found = np.empty(2, np.int64)
    _clock_gettime(_MONOTONIC, found.ctypes.data)
    return float(found[0]) + 1e-9 * float(found[1])


@_compiled
def init_mutex(mutex: Array) -> None:
    """Make a mutex in these bytes."""
    _init(mutex.ctypes.data, 0)


@_compiled
def read(out: Array, own: Array, mutex: Array, counters: Array) -> int:
    """Copy the vector; returns the number of its averages."""
    _lock(mutex.ctypes.data)
    out[:] = own
    version: int = counters[RECEIVED] + counters[BEGUN]
    _unlock(mutex.ctypes.data)
    return version


@_compiled
def add(change: Array, own: Array, mutex: Array, counters: Array) -> int:
    """Add to the vector; returns the number of its averages."""
    _lock(mutex.ctypes.data)
    for k in range(own.size):
        own[k] += change[k]
    version: int = counters[RECEIVED] + counters[BEGUN]
    _unlock(mutex.ctypes.data)
    return version


@_compiled
def fetch_and_add(place: int, number: int, own: Array, mutex: Array) -> int:
    """Add to an element; returns its value before."""
    _lock(mutex.ctypes.data)
    before: int = own[place]
    own[place] += number
    _unlock(mutex.ctypes.data)
    return before


@_compiled
def _half_difference(own: Array, theirs: Array, half: Array) -> bool:
    """Theirs becomes (theirs - own) / 2, rounded down for integers; returns whether all of it is finite."""
    if half[0] == 0:
        for k in range(own.size):
            theirs[k] = (theirs[k] - own[k]) // 2
        return True
    num_bad = 0
    for k in range(own.size):
        difference = (theirs[k] - own[k]) * half[0]
        theirs[k] = difference
        num_bad += difference - difference != 0
    return num_bad == 0


@_compiled
def _answer(message: Array, own: Array, half: Array, mutex: Array, counters: Array) -> int:
    """Do what a complete request asks, and write the answer into it; returns the number of its bytes."""
    header = message[:HEADER_BYTES].view(np.int64)
    body = message[HEADER_BYTES:].view(own.dtype)
    place = header[PLACE]
    kind = REFUSED
    _lock(mutex.ctypes.data)
    if header[KIND] == AVERAGE:
        if _half_difference(own, body, half):
            for k in range(own.size):
                own[k] += body[k]
            counters[RECEIVED] += 1
            kind = VECTOR
    elif header[KIND] == READ:
        body[: own.size] = own
        kind = VECTOR
    elif 0 <= place < own.size:
        before = own[place]
        own[place] += header[NUMBER]
        header[NUMBER] = before
        kind = DONE
    _unlock(mutex.ctypes.data)
    header[KIND] = kind
    return message.size if kind == VECTOR else HEADER_BYTES


@_compiled
def take_answer(message: Array, own: Array, mutex: Array, counters: Array) -> None:
    """Take the answer to an average: this side loses what the other gained."""
    _lock(mutex.ctypes.data)
    if message[:HEADER_BYTES].view(np.int64)[KIND] == VECTOR:
        difference = message[HEADER_BYTES:].view(own.dtype)
        for k in range(own.size):
            own[k] -= difference[k]
        counters[BEGUN] += 1
    else:
        counters[NUM_REFUSED] += 1
    _unlock(mutex.ctypes.data)


@_compiled
def _send_rest(descriptor: int, message: Array, progress: Array) -> bool:
    """Send the rest of a message without waiting; returns whether all of it is sent."""
    done = _send(descriptor, message.ctypes.data + progress[SENT], progress[TO_SEND] - progress[SENT], _AT_ONCE)
    if done > 0:
        progress[SENT] += done
    return bool(progress[SENT] == progress[TO_SEND])


@_compiled
def _receive(descriptor: int, message: Array, progress: Array, found: int) -> int:
    """Receive without waiting; returns DONE for a complete message, WAITING, or LOST."""
    got = _recv(descriptor, message.ctypes.data + progress[GOT], message.size - progress[GOT], _AT_ONCE)
    if got <= 0:
        return LOST if got == 0 or found & _BROKEN else WAITING
    progress[GOT] += got
    if progress[GOT] < HEADER_BYTES:
        return WAITING
    kind = message[:HEADER_BYTES].view(np.int64)[KIND]
    length = message.size if kind in (AVERAGE, VECTOR) else HEADER_BYTES
    return DONE if progress[GOT] == length else WAITING


@_compiled
def prepare(kind: int, place: int, number: int, message: Array, progress: Array) -> None:
    """Write a request without a vector."""
    header = message[:HEADER_BYTES].view(np.int64)
    header[KIND], header[PLACE], header[NUMBER] = kind, place, number
    progress[SENT], progress[TO_SEND], progress[GOT] = 0, HEADER_BYTES, 0


@_compiled
def prepare_average(message: Array, progress: Array, own: Array, mutex: Array) -> None:
    """Write a request for an average with this vector."""
    prepare(AVERAGE, 0, 0, message, progress)
    progress[TO_SEND] = message.size
    _lock(mutex.ctypes.data)
    message[HEADER_BYTES:].view(own.dtype)[: own.size] = own
    _unlock(mutex.ctypes.data)


@_compiled
def ask(descriptor: int, polled: Array, message: Array, progress: Array, milliseconds: int) -> int:
    """Send the rest of a request and receive its answer: DONE, LOST, or WAITING after this time without any event."""
    polled.view(np.int32)[0] = descriptor
    while True:
        is_sent = _send_rest(descriptor, message, progress) if progress[SENT] < progress[TO_SEND] else True
        polled[_EVENTS] = _IN if is_sent else _IN | _OUT
        if _poll(polled.ctypes.data, 1, milliseconds) <= 0:
            return WAITING
        if polled[_FOUND] & (_IN | _BROKEN):
            state = _receive(descriptor, message, progress, polled[_FOUND])
            if state != WAITING:
                return state


@_compiled
def begin(
    slot: int, polled: Array, region: Array, progress: Array, started: Array, own: Array, mutex: Array, counters: Array
) -> int:
    """Request an average without waiting for it: DONE, WAITING if the thread must send the rest, BUSY or LOST.

    One is under way at a time: the answers to several requests with the same vector would move it several times as far,
    and with three or more the models of the workers would diverge.
    """
    mine = progress[slot]
    _lock(mutex.ctypes.data)
    state = LOST if mine[IS_LOST] else BUSY if counters[NUM_UNDER_WAY] else DONE
    if state == LOST:
        counters[NUM_LOST] += 1
    elif state == DONE:
        mine[UNDER_WAY] = 1
        counters[NUM_UNDER_WAY] += 1
    _unlock(mutex.ctypes.data)
    if state != DONE:
        return state
    started[slot] = _now()
    prepare_average(region[slot], mine, own, mutex)
    if _send_rest(polled[slot].view(np.int32)[0], region[slot], mine):
        return DONE
    polled[slot, _EVENTS] = _IN | _OUT
    return WAITING


@_compiled
def serve(
    first_own: int,
    polled: Array,
    region: Array,
    progress: Array,
    started: Array,
    own: Array,
    half: Array,
    mutex: Array,
    counters: Array,
    seconds: Array,
    drained: int,
) -> None:
    """The loop of the communication thread.

    Args:
        first_own: Number of the first connection of this rank's own requests; 0 is the one that wakes this loop, and
            those in between carry requests of partners.
        polled: Poll entries of the connections.
        region: Message of each connection, in bytes.
        progress: Progress of each connection.
        started: Time of the last request of each connection [s].
        own: The vector.
        half: 0.5 of the type of the vector; 0 for integers.
        mutex: Guards the vector and counters.
        counters: Counters of the vector.
        seconds: Sum of the durations of the averages that `begin` requested, in its only element [s].
        drained: Descriptor that gets a byte at the end of an average for which the owner waits.
    """
    while counters[IS_ENDING] == 0:
        _poll(polled.ctypes.data, polled.shape[0], -1)
        if polled[0, _FOUND]:
            _recv(polled[0].view(np.int32)[0], region[0].ctypes.data, region.shape[1], _AT_ONCE)
        for slot in range(1, polled.shape[0]):
            found = polled[slot, _FOUND]
            if not found:
                continue
            mine, message = progress[slot], region[slot]
            descriptor = polled[slot].view(np.int32)[0]
            state = WAITING
            if found & _OUT and _send_rest(descriptor, message, mine):
                polled[slot, _EVENTS] = _IN
            if found & (_IN | _BROKEN):
                state = _receive(descriptor, message, mine, found)
            if state == DONE and slot < first_own:
                mine[SENT], mine[GOT] = 0, 0
                mine[TO_SEND] = _answer(message, own, half, mutex, counters)
                polled[slot, _EVENTS] = _IN if _send_rest(descriptor, message, mine) else _OUT
            elif state == DONE:
                mine[GOT] = 0
                take_answer(message, own, mutex, counters)
                _end(mine, started[slot], mutex, counters, seconds, drained)
            elif state == LOST:
                polled[slot].view(np.int32)[0] = -1
                _lock(mutex.ctypes.data)
                mine[IS_LOST] = 1
                is_under_way = mine[UNDER_WAY]
                counters[NUM_LOST] += is_under_way
                _unlock(mutex.ctypes.data)
                if is_under_way:
                    _end(mine, started[slot], mutex, counters, seconds, drained)


@_compiled
def _end(mine: Array, started: float, mutex: Array, counters: Array, seconds: Array, drained: int) -> None:
    """Book the end of an average that `begin` requested."""
    _lock(mutex.ctypes.data)
    seconds[0] += _now() - started
    mine[UNDER_WAY] = 0
    counters[NUM_UNDER_WAY] -= 1
    is_draining = counters[IS_DRAINING]
    _unlock(mutex.ctypes.data)
    if is_draining:
        _send(drained, counters.ctypes.data, 1, _AT_ONCE)


def compile_all(dtype: type[np.generic]) -> None:
    """Compile the kernels for vectors of a type, without calling them."""
    own, mutex, counters = np.zeros(1, dtype), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    region, progress, polled = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int16)
    times, beginning = np.zeros(1), (own, mutex, counters)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (init_mutex, (mutex,)),
        (read, (own, *beginning)),
        (add, (own, *beginning)),
        (fetch_and_add, (0, 0, own, mutex)),
        (take_answer, (region[0], *beginning)),
        (prepare, (0, 0, 0, region[0], progress[0])),
        (prepare_average, (region[0], progress[0], own, mutex)),
        (ask, (0, polled[0], region[0], progress[0], 0)),
        (begin, (0, polled, region, progress, times, *beginning)),
        (serve, (0, polled, region, progress, times, own, own, mutex, counters, times, 0)),
    ]
    for function, arguments in calls:
        function.compile(tuple(numba.typeof(each) for each in arguments))  # type: ignore[no-untyped-call]
