"""Compiled loops over vectors that ranks share, and the server of the ranks of other hosts; without Python's lock.

The head of a vector has a mutex and counters. The mutex is shared between processes and robust: if its owner dies, the
next one gets it. Whoever holds it copies or adds, and never sends or receives. An average in memory holds two, that of
the lower rank first, and gives up when one of them is not free soon, as when its holder was stopped.

A message is a header of `HEADER_BYTES`, then nothing or a vector, whose bytes zeros fill up to a multiple of 64. A
connection carries one request at a time, and then its answer. Every socket has one reader and one writer:

 * `serve`, the loop of the communication thread, answers the requests of partners, and takes their answers to averages
   that `begin` has requested;
 * the computing thread sends requests. It also takes the answers to those that it waits for (`ask`), which have
   connections of their own.
"""

from __future__ import annotations

import errno
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

#: Bytes of a head: the mutex, then counters of the vector: averages by partners and by the owner, those not made since
#: a vector was not finite or a partner was lost, whether the owner waits for its averages, whether the thread shall
#: end, and averages under way.
_MUTEX_BYTES: Final = 64
HEAD_BYTES: Final = 128
RECEIVED: Final = 0
BEGUN: Final = 1
NUM_REFUSED: Final = 2
NUM_LOST: Final = 3
IS_DRAINING: Final = 4
IS_ENDING: Final = 5
NUM_UNDER_WAY: Final = 6

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
#: Time after which an average gives up a mutex [ns]: a holder that computes needs microseconds, one without a core
#: some milliseconds, and one that was stopped may never come back.
_LONGEST_WAIT: Final = 5_000_000

_compiled = partial(compiled, nogil=True)


def _external(name: str, result: types.Type, *arguments: types.Type) -> Callable[..., int]:
    """A function of the C library."""
    return cast("Callable[..., int]", types.ExternalFunction(name, result(*arguments)))


_poll = _external("poll", types.int32, types.uintp, types.uintp, types.int32)
_recv = _external("recv", types.intp, types.int32, types.uintp, types.uintp, types.int32)
_send = _external("send", types.intp, types.int32, types.uintp, types.uintp, types.int32)
_clock_gettime = _external("clock_gettime", types.int32, types.int32, types.uintp)
_set_shared = _external("pthread_mutexattr_setpshared", types.int32, types.uintp, types.int32)
_set_robust = _external("pthread_mutexattr_setrobust", types.int32, types.uintp, types.int32)
_init_attributes = _external("pthread_mutexattr_init", types.int32, types.uintp)
_init = _external("pthread_mutex_init", types.int32, types.uintp, types.uintp)
_make_consistent = _external("pthread_mutex_consistent", types.int32, types.uintp)
_try_mutex = _external("pthread_mutex_trylock", types.int32, types.uintp)
_wait_for_mutex = _external("pthread_mutex_lock", types.int32, types.uintp)
_wait_until = _external("pthread_mutex_timedlock", types.int32, types.uintp, types.uintp)
_unlock_mutex = _external("pthread_mutex_unlock", types.int32, types.uintp)
_OWNER_DIED: Final = errno.EOWNERDEAD
_IS_BUSY: Final = errno.EBUSY
_TOO_LATE: Final = errno.ETIMEDOUT
_REAL_TIME: Final = time.CLOCK_REALTIME


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
def init_head(head: Array) -> None:
    """Make the mutex of a head."""
    # More than any system's type needs.
    attributes = np.zeros(8, np.int64)
    _init_attributes(attributes.ctypes.data)
    _set_shared(attributes.ctypes.data, 1)
    _set_robust(attributes.ctypes.data, 1)
    _init(head.ctypes.data, attributes.ctypes.data)


@_compiled
def lock(head: Array) -> float:
    """Wait for the mutex; returns the time spent waiting [s]."""
    state, seconds = _try_mutex(head.ctypes.data), 0.0
    if state == _IS_BUSY:
        started = _now()
        state = _wait_for_mutex(head.ctypes.data)
        seconds = _now() - started
    if state == _OWNER_DIED:
        _make_consistent(head.ctypes.data)
    return seconds


@_compiled
def unlock(head: Array) -> None:
    """Give the mutex back; the thread that has it calls this."""
    _unlock_mutex(head.ctypes.data)


@_compiled
def is_locked(head: Array) -> bool:
    """Whether someone has the mutex."""
    if _try_mutex(head.ctypes.data) == _IS_BUSY:
        return True
    # One of a dead owner serves as one that is free.
    _make_consistent(head.ctypes.data)
    _unlock_mutex(head.ctypes.data)
    return False


@_compiled
def _lock_soon(head: Array, waits: Array) -> bool:
    """Wait for the mutex for a short time; returns whether it is there."""
    state = _try_mutex(head.ctypes.data)
    if state == _IS_BUSY:
        started = _now()
        until = np.empty(2, np.int64)
        _clock_gettime(_REAL_TIME, until.ctypes.data)
        until[1] += _LONGEST_WAIT
        if until[1] >= 1_000_000_000:
            until[0] += 1
            until[1] -= 1_000_000_000
        state = _wait_until(head.ctypes.data, until.ctypes.data)
        waits[0] += _now() - started
    if state == _OWNER_DIED:
        _make_consistent(head.ctypes.data)
    return bool(state != _TOO_LATE)


@_compiled
def counters_of(head: Array) -> Array:
    """The counters of a head."""
    return head[_MUTEX_BYTES:HEAD_BYTES].view(np.int64)


@_compiled
def read(out: Array, own: Array, head: Array, waits: Array) -> int:
    """Copy a vector; returns the number of its averages."""
    waits[0] += lock(head)
    # This loop is faster than a copy of slices, which checks for overlaps.
    for k in range(own.size):
        out[k] = own[k]
    counters = counters_of(head)
    version: int = counters[RECEIVED] + counters[BEGUN]
    unlock(head)
    return version


@_compiled
def add(change: Array, own: Array, head: Array, waits: Array) -> int:
    """Add to a vector; returns the number of its averages."""
    waits[0] += lock(head)
    for k in range(own.size):
        own[k] += change[k]
    counters = counters_of(head)
    version: int = counters[RECEIVED] + counters[BEGUN]
    unlock(head)
    return version


@_compiled
def fetch_and_add(place: int, number: int, own: Array, head: Array) -> int:
    """Add to an element; returns its value before."""
    lock(head)
    before: int = own[place]
    own[place] += number
    unlock(head)
    return before


@_compiled
def average(
    own: Array, own_head: Array, theirs: Array, their_head: Array, half: Array, waits: Array, is_first: bool
) -> int:
    """Replace two vectors by their average: DONE, REFUSED since it is not finite, or BUSY.

    Args:
        own: The vector of this rank.
        own_head: Its head.
        theirs: The vector of the partner.
        their_head: Its head.
        half: 0.5 of the type of the vectors; 0 for integers.
        waits: Time spent waiting for the mutexes, in its only element [s].
        is_first: Whether this rank's mutex comes first.
    """
    first, second = (own_head, their_head) if is_first else (their_head, own_head)
    if not _lock_soon(first, waits):
        return BUSY
    if not _lock_soon(second, waits):
        unlock(first)
        return BUSY
    state = DONE if _average(own, theirs, half) else REFUSED
    own_counters = counters_of(own_head)
    own_counters[BEGUN if state == DONE else NUM_REFUSED] += 1
    counters_of(their_head)[RECEIVED] += state == DONE
    unlock(second)
    unlock(first)
    return state


@_compiled
def _average(own: Array, theirs: Array, half: Array) -> bool:
    """Replace both by their average, if it is finite; returns whether."""
    if half[0] == 0:
        for k in range(own.size):
            difference = (theirs[k] - own[k]) // 2
            own[k] += difference
            theirs[k] -= difference
        return True
    num_bad = 0
    for k in range(own.size):
        mean = (own[k] + theirs[k]) * half[0]
        num_bad += mean - mean != 0
    if num_bad:
        return False
    for k in range(own.size):
        mean = (own[k] + theirs[k]) * half[0]
        own[k] = mean
        theirs[k] = mean
    return True


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
def _answer(message: Array, own: Array, half: Array, head: Array) -> int:
    """Do what a complete request asks, and write the answer into it; returns the number of its bytes."""
    header = message[:HEADER_BYTES].view(np.int64)
    body = message[HEADER_BYTES:].view(own.dtype)
    place = header[PLACE]
    kind = REFUSED
    lock(head)
    if header[KIND] == AVERAGE:
        if _half_difference(own, body, half):
            for k in range(own.size):
                own[k] += body[k]
            counters_of(head)[RECEIVED] += 1
            kind = VECTOR
    elif header[KIND] == READ:
        body[: own.size] = own
        kind = VECTOR
    elif 0 <= place < own.size:
        before = own[place]
        own[place] += header[NUMBER]
        header[NUMBER] = before
        kind = DONE
    unlock(head)
    header[KIND] = kind
    return message.size if kind == VECTOR else HEADER_BYTES


@_compiled
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
def prepare_average(message: Array, progress: Array, own: Array, head: Array) -> None:
    """Write a request for an average with this vector."""
    prepare(AVERAGE, 0, 0, message, progress)
    progress[TO_SEND] = message.size
    lock(head)
    body = message[HEADER_BYTES:].view(own.dtype)
    for k in range(own.size):
        body[k] = own[k]
    unlock(head)


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
def begin(slot: int, polled: Array, region: Array, progress: Array, started: Array, own: Array, head: Array) -> int:
    """Request an average without waiting for it: DONE, WAITING if the thread must send the rest, BUSY or LOST.

    One is under way at a time: the answers to several requests with the same vector would move it several times as far,
    and with three or more the models of the workers would diverge.
    """
    mine, counters = progress[slot], counters_of(head)
    lock(head)
    state = LOST if mine[IS_LOST] else BUSY if counters[NUM_UNDER_WAY] else DONE
    if state == LOST:
        counters[NUM_LOST] += 1
    elif state == DONE:
        mine[UNDER_WAY] = 1
        counters[NUM_UNDER_WAY] += 1
    unlock(head)
    if state != DONE:
        return state
    started[slot] = _now()
    prepare_average(region[slot], mine, own, head)
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
    head: Array,
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
        head: Its mutex and counters.
        seconds: Sum of the durations of the averages that `begin` requested, in its only element [s].
        drained: Descriptor that gets a byte at the end of an average for which the owner waits.
    """
    counters = counters_of(head)
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
                mine[TO_SEND] = _answer(message, own, half, head)
                polled[slot, _EVENTS] = _IN if _send_rest(descriptor, message, mine) else _OUT
            elif state == DONE:
                mine[GOT] = 0
                take_answer(message, own, head)
                _end(mine, started[slot], head, seconds, drained)
            elif state == LOST:
                polled[slot].view(np.int32)[0] = -1
                lock(head)
                mine[IS_LOST] = 1
                is_under_way = mine[UNDER_WAY]
                counters[NUM_LOST] += is_under_way
                unlock(head)
                if is_under_way:
                    _end(mine, started[slot], head, seconds, drained)


@_compiled
def _end(mine: Array, started: float, head: Array, seconds: Array, drained: int) -> None:
    """Book the end of an average that `begin` requested."""
    counters = counters_of(head)
    lock(head)
    seconds[0] += _now() - started
    mine[UNDER_WAY] = 0
    counters[NUM_UNDER_WAY] -= 1
    is_draining = counters[IS_DRAINING]
    unlock(head)
    if is_draining:
        _send(drained, counters.ctypes.data, 1, _AT_ONCE)


def compile_all(dtype: type[np.generic]) -> None:
    """Compile the kernels for vectors of a type, without calling them."""
    own, head, times = np.zeros(1, dtype), np.zeros(HEAD_BYTES, np.uint8), np.zeros(1)
    region, progress, polled = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int16)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (init_head, (head,)),
        (lock, (head,)),
        (unlock, (head,)),
        (is_locked, (head,)),
        (read, (own, own, head, times)),
        (add, (own, own, head, times)),
        (fetch_and_add, (0, 0, own, head)),
        (average, (own, head, own, head, own, times, True)),
        (take_answer, (region[0], own, head)),
        (prepare, (0, 0, 0, region[0], progress[0])),
        (prepare_average, (region[0], progress[0], own, head)),
        (ask, (0, polled[0], region[0], progress[0], 0)),
        (begin, (0, polled, region, progress, times, own, head)),
        (serve, (0, polled, region, progress, times, own, own, head, times, 0)),
    ]
    for function, arguments in calls:
        function.compile(tuple(numba.typeof(each) for each in arguments))  # type: ignore[no-untyped-call]
