"""Compiled loops over vectors in memory that ranks share.

An average holds two mutexes, that of the lower rank first, and gives up when one of them is not free soon, as when its
holder was stopped.
"""

from __future__ import annotations

from typing import Final

from training.transports.mutexes import (
    BEGUN,
    NUM_REFUSED,
    RECEIVED,
    Array,
    counters_of,
    lock,
    lock_soon,
    unlock,
    without_gil,
)

#: States of an average: made, not made since it is not finite, and since a mutex is not free.
DONE: Final = 1
REFUSED: Final = 2
BUSY: Final = 3


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
    own: Array, own_head: Array, theirs: Array, their_head: Array, half: Array, waits: Array, is_first: bool
) -> int:
    """Replace two vectors by their average: DONE, REFUSED since it is not finite, or BUSY.

    Args:
        own: The vector of this rank.
        own_head: Its head.
        theirs: The vector of the partner.
        their_head: Its head.
        half: 0.5 of the type of the vectors.
        waits: Time spent waiting for the mutexes, in its only element [s].
        is_first: Whether this rank's mutex comes first.
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
