"""Compiled code for memory that ranks share: mutexes, clocks, and loops over vectors.

A record begins with a head: a mutex and counters. The mutex is shared between processes and robust:
if its owner dies, the next process gets it. Who holds it copies or adds, and never waits for a
message. An average holds two mutexes, that of the lower rank first, and gives up when one of them
is not free soon, as when its owner was stopped.
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
"""An array of numpy; mypy does not see numba's types. A head is (HEAD_BYTES,) uint8."""

#: Room for the mutex at the beginning of a head; the counters follow it.
_MUTEX_BYTES: Final = 64
#: Size of a head.
HEAD_BYTES: Final = 128
#: Position among the counters of the head of a shared vector: number of averages by partners.
RECEIVED: Final = 0
#: Position among the counters of the head of a shard: its clock.
CLOCK: Final = 0
#: Position of the number of averages by the owner.
BEGUN: Final = 1
#: Position of the number of averages that a vector that is not finite has prevented.
NUM_REFUSED: Final = 2

#: States of an average: done, refused since it is not finite, or given up since a mutex is not
#: free.
DONE: Final = 1
REFUSED: Final = 2
BUSY: Final = 3

#: Time after which an average gives up a mutex [ns]: an owner that computes needs microseconds, one
#: without a core some milliseconds, and one that was stopped may never come back.
_MAX_WAIT_NANOSECONDS: Final = 5_000_000

without_gil = partial(compiled, nogil=True)


def external(name: str, result: types.Type, *arguments: types.Type) -> Callable[..., int]:
    """Declare a function of the C library, by its types; compiled code may then call it."""
    return cast("Callable[..., int]", types.ExternalFunction(name, result(*arguments)))


_clock_gettime = external("clock_gettime", types.int32, types.int32, types.uintp)
_set_shared = external("pthread_mutexattr_setpshared", types.int32, types.uintp, types.int32)
_set_robust = external("pthread_mutexattr_setrobust", types.int32, types.uintp, types.int32)
_init_attributes = external("pthread_mutexattr_init", types.int32, types.uintp)
_init = external("pthread_mutex_init", types.int32, types.uintp, types.uintp)
_make_consistent = external("pthread_mutex_consistent", types.int32, types.uintp)
_try_lock_mutex = external("pthread_mutex_trylock", types.int32, types.uintp)
_lock_mutex = external("pthread_mutex_lock", types.int32, types.uintp)
_lock_until = external("pthread_mutex_timedlock", types.int32, types.uintp, types.uintp)
_unlock_mutex = external("pthread_mutex_unlock", types.int32, types.uintp)


@without_gil
def now() -> float:
    """Return the seconds of the clock of `time.perf_counter`."""
    # `struct timespec`: whole seconds, then nanoseconds.
    timespec = np.empty(2, np.int64)
    _clock_gettime(time.CLOCK_MONOTONIC, timespec.ctypes.data)
    return float(timespec[0]) + 1e-9 * float(timespec[1])


@without_gil
def init_head(head: Array) -> None:
    """Make the mutex of a head: shared between processes, and robust."""
    # Room for the attributes of the mutex, more than any system's type needs.
    attributes = np.zeros(8, np.int64)
    _init_attributes(attributes.ctypes.data)
    _set_shared(attributes.ctypes.data, 1)
    _set_robust(attributes.ctypes.data, 1)
    _init(head.ctypes.data, attributes.ctypes.data)


@without_gil
def try_lock(head: Array) -> bool:
    """Lock the mutex if it is free; return whether it was."""
    state = _try_lock_mutex(head.ctypes.data)
    # If its owner died, this process now has the mutex, which must be declared usable.
    if state == errno.EOWNERDEAD:
        _make_consistent(head.ctypes.data)
    return bool(state != errno.EBUSY)


@without_gil
def lock(head: Array) -> float:
    """Wait for the mutex, and lock it; return the time spent waiting [s]."""
    if try_lock(head):
        return 0.0
    started = now()
    if _lock_mutex(head.ctypes.data) == errno.EOWNERDEAD:
        _make_consistent(head.ctypes.data)
    return now() - started


@without_gil
def lock_soon(head: Array, wait_seconds: Array) -> bool:
    """Wait for the mutex for at most 5 milliseconds; return whether this process has it now.

    `wait_seconds`: (1,) the time spent waiting is added to it [s].
    """
    if try_lock(head):
        return True
    started = now()
    deadline = np.empty(2, np.int64)
    _clock_gettime(time.CLOCK_REALTIME, deadline.ctypes.data)
    deadline[1] += _MAX_WAIT_NANOSECONDS
    # The second number counts nanoseconds within a second.
    if deadline[1] >= 1_000_000_000:
        deadline[0] += 1
        deadline[1] -= 1_000_000_000
    state = _lock_until(head.ctypes.data, deadline.ctypes.data)
    wait_seconds[0] += now() - started
    if state == errno.EOWNERDEAD:
        _make_consistent(head.ctypes.data)
    return bool(state != errno.ETIMEDOUT)


@without_gil
def unlock(head: Array) -> None:
    """Unlock the mutex; the thread that locked it calls this."""
    _unlock_mutex(head.ctypes.data)


@without_gil
def counters_of(head: Array) -> Array:
    """Return the counters of a head as a view, (8,) int64; `RECEIVED` and so on are positions."""
    return head[_MUTEX_BYTES:HEAD_BYTES].view(np.int64)


@without_gil
def read(out: Array, vector: Array, head: Array, wait_seconds: Array) -> int:
    """Copy a vector into `out` under its mutex; return how often it was averaged so far.

    `wait_seconds`: (1,) the time spent waiting for the mutex is added to it [s].
    """
    wait_seconds[0] += lock(head)
    # This loop is faster than a copy of slices, which checks for overlaps.
    for k in range(vector.size):
        out[k] = vector[k]
    counters = counters_of(head)
    num_averages: int = counters[RECEIVED] + counters[BEGUN]
    unlock(head)
    return num_averages


@without_gil
def add(change: Array, vector: Array, head: Array, wait_seconds: Array) -> int:
    """Add a change to a vector under its mutex; return how often it was averaged so far.

    `wait_seconds`: (1,) the time spent waiting for the mutex is added to it [s].
    """
    wait_seconds[0] += lock(head)
    for k in range(vector.size):
        vector[k] += change[k]
    counters = counters_of(head)
    num_averages: int = counters[RECEIVED] + counters[BEGUN]
    unlock(head)
    return num_averages


@without_gil
def fetch_and_add(element: int, amount: int, vector: Array, head: Array) -> int:
    """Add to an element of a vector under its mutex; return its value before."""
    lock(head)
    old_value: int = vector[element]
    vector[element] += amount
    unlock(head)
    return old_value


@without_gil
def average(
    vector: Array,
    head: Array,
    partner_vector: Array,
    partner_head: Array,
    half: Array,
    wait_seconds: Array,
    locks_own_first: bool,
) -> int:
    """Replace two vectors by their average, while this process holds both mutexes.

    All ranks lock the mutex of the lower rank first, so two averages never wait for each other.

    Args:
        vector: (n,) of the worker that begins the average.
        head: Its mutex and counters.
        partner_vector: (n,).
        partner_head: Mutex and counters of the partner's vector.
        half: (1,) 0.5 in the type of the vectors.
        wait_seconds: (1,) the time spent waiting for the mutexes is added to it [s].
        locks_own_first: Whether the worker has a lower rank than the partner.

    Returns:
        DONE; REFUSED if the average is not finite, so that both stay; or BUSY if a mutex was not
        free soon.
    """
    first, second = (head, partner_head) if locks_own_first else (partner_head, head)
    if not lock_soon(first, wait_seconds):
        return BUSY
    if not lock_soon(second, wait_seconds):
        unlock(first)
        return BUSY
    # First only check: inf - inf and NaN - NaN are NaN, which differs from 0.
    num_bad = 0
    for k in range(vector.size):
        mean = (vector[k] + partner_vector[k]) * half[0]
        num_bad += mean - mean != 0
    if num_bad == 0:
        for k in range(vector.size):
            mean = (vector[k] + partner_vector[k]) * half[0]
            vector[k] = mean
            partner_vector[k] = mean
        counters_of(head)[BEGUN] += 1
        counters_of(partner_head)[RECEIVED] += 1
    else:
        counters_of(head)[NUM_REFUSED] += 1
    unlock(second)
    unlock(first)
    return REFUSED if num_bad else DONE


@without_gil
def add_half_difference(vector: Array, partner_vector: Array, half: Array) -> bool:
    """Add half of partner - own to the own vector, unless an element of it is not finite.

    This is one side of an average with another host, which subtracts the same. `partner_vector`
    becomes that half of the difference. `half`: (1,) 0.5 in the type of the vectors.

    Returns:
        Whether it is finite, and so added.
    """
    num_bad = 0
    for k in range(vector.size):
        difference = (partner_vector[k] - vector[k]) * half[0]
        partner_vector[k] = difference
        num_bad += difference - difference != 0
    if num_bad == 0:
        for k in range(vector.size):
            vector[k] += partner_vector[k]
    return num_bad == 0
