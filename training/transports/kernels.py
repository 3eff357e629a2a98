"""Compiled code for memory that ranks share: mutexes, clocks, and loops over vectors.

A record begins with a head: a mutex and counters. The mutex is shared between processes and robust: if its owner dies,
the next one gets it. Who has it copies or adds, and never waits for a message. An average holds two mutexes, that of
the lower rank first, and gives up when one of them is not free soon, as when its holder was stopped.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import numpy as np
from numba import types

from hep_core.compiling import compiled

Array = Any
"""An array; mypy does not see numba's types."""

_MUTEX_BYTES: Final = 64
HEAD_BYTES: Final = 128
#: Counters of a head: averages by partners and by the owner, and those that a vector that is not finite has
#: prevented. The first one of a shard is its clock.
RECEIVED: Final = 0
CLOCK: Final = 0
BEGUN: Final = 1
NUM_REFUSED: Final = 2

#: States of an average: made, not made since it is not finite, and since a mutex is not free.
DONE: Final = 1
REFUSED: Final = 2
BUSY: Final = 3

#: Time after which an average gives up a mutex [ns]: a holder that computes needs microseconds, one without a core
#: some milliseconds, and one that was stopped may never come back.
_LONGEST_WAIT: Final = 5_000_000

without_gil = partial(compiled, nogil=True)


def external(name: str, result: types.Type, *arguments: types.Type) -> Callable[..., int]:
    """A function of the C library."""
    return cast("Callable[..., int]", types.ExternalFunction(name, result(*arguments)))


_clock_gettime = external("clock_gettime", types.int32, types.int32, types.uintp)
_set_shared = external("pthread_mutexattr_setpshared", types.int32, types.uintp, types.int32)
_set_robust = external("pthread_mutexattr_setrobust", types.int32, types.uintp, types.int32)
_init_attributes = external("pthread_mutexattr_init", types.int32, types.uintp)
_init = external("pthread_mutex_init", types.int32, types.uintp, types.uintp)
_make_consistent = external("pthread_mutex_consistent", types.int32, types.uintp)
_try_mutex = external("pthread_mutex_trylock", types.int32, types.uintp)
_wait_for_mutex = external("pthread_mutex_lock", types.int32, types.uintp)
_wait_until = external("pthread_mutex_timedlock", types.int32, types.uintp, types.uintp)
_unlock_mutex = external("pthread_mutex_unlock", types.int32, types.uintp)


@without_gil
def now() -> float:
    """Seconds of the clock of `time.perf_counter`."""
    found = np.empty(2, np.int64)
    _clock_gettime(time.CLOCK_MONOTONIC, found.ctypes.data)
    return float(found[0]) + 1e-9 * float(found[1])


@without_gil
def init_head(head: Array) -> None:
    """Make the mutex of a head."""
    # More than any system's type needs.
    attributes = np.zeros(8, np.int64)
    _init_attributes(attributes.ctypes.data)
    _set_shared(attributes.ctypes.data, 1)
    _set_robust(attributes.ctypes.data, 1)
    _init(head.ctypes.data, attributes.ctypes.data)


@without_gil
def try_lock(head: Array) -> bool:
    """Take the mutex if it is free; returns whether."""
    state = _try_mutex(head.ctypes.data)
    if state == errno.EOWNERDEAD:
        _make_consistent(head.ctypes.data)
    return bool(state != errno.EBUSY)


@without_gil
def lock(head: Array) -> float:
    """Wait for the mutex; returns the time spent waiting [s]."""
    if try_lock(head):
        return 0.0
    started = now()
    if _wait_for_mutex(head.ctypes.data) == errno.EOWNERDEAD:
        _make_consistent(head.ctypes.data)
    return now() - started


@without_gil
def lock_soon(head: Array, waits: Array) -> bool:
    """Wait for the mutex for a short time, which is added to `waits` [s]; returns whether it is there."""
    if try_lock(head):
        return True
    started = now()
    until = np.empty(2, np.int64)
    _clock_gettime(time.CLOCK_REALTIME, until.ctypes.data)
    until[1] += _LONGEST_WAIT
    if until[1] >= 1_000_000_000:
        until[0] += 1
        until[1] -= 1_000_000_000
    state = _wait_until(head.ctypes.data, until.ctypes.data)
    waits[0] += now() - started
    if state == errno.EOWNERDEAD:
        _make_consistent(head.ctypes.data)
    return bool(state != errno.ETIMEDOUT)


@without_gil
def unlock(head: Array) -> None:
    """Give the mutex back; the thread that has it calls this."""
    _unlock_mutex(head.ctypes.data)


@without_gil
def counters_of(head: Array) -> Array:
    """The counters of a head."""
    return head[_MUTEX_BYTES:HEAD_BYTES].view(np.int64)


@without_gil
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


@without_gil
def add(change: Array, own: Array, head: Array, waits: Array) -> int:
    """Add to a vector; returns the number of its averages."""
    waits[0] += lock(head)
    for k in range(own.size):
        own[k] += change[k]
    counters = counters_of(head)
    version: int = counters[RECEIVED] + counters[BEGUN]
    unlock(head)
    return version


@without_gil
def fetch_and_add(place: int, number: int, own: Array, head: Array) -> int:
    """Add to an element; returns its value before."""
    lock(head)
    before: int = own[place]
    own[place] += number
    unlock(head)
    return before


@without_gil
def average(
    own: Array,
    own_head: Array,
    theirs: Array,
    their_head: Array,
    half: Array,
    waits: Array,
    is_first: bool,
) -> int:
    """Replace two vectors by their average: DONE, REFUSED since it is not finite, or BUSY.

    `waits`: time spent waiting for the mutexes, in its only element [s].
    """
    first, second = (own_head, their_head) if is_first else (their_head, own_head)
    if not lock_soon(first, waits):
        return BUSY
    if not lock_soon(second, waits):
        unlock(first)
        return BUSY
    num_bad = 0
    for k in range(own.size):
        mean = (own[k] + theirs[k]) * half[0]
        num_bad += mean - mean != 0
    if num_bad == 0:
        for k in range(own.size):
            mean = (own[k] + theirs[k]) * half[0]
            own[k] = mean
            theirs[k] = mean
    counters_of(own_head)[NUM_REFUSED if num_bad else BEGUN] += 1
    counters_of(their_head)[RECEIVED] += num_bad == 0
    unlock(second)
    unlock(first)
    return REFUSED if num_bad else DONE


@without_gil
def add_half_difference(own: Array, theirs: Array, half: Array) -> bool:
    """Theirs becomes (theirs - own) / 2, which is added to own if all of it is finite; returns whether."""
    num_bad = 0
    for k in range(own.size):
        difference = (theirs[k] - own[k]) * half[0]
        theirs[k] = difference
        num_bad += difference - difference != 0
    if num_bad == 0:
        for k in range(own.size):
            own[k] += theirs[k]
    return num_bad == 0
