"""Estimates the time of a search on a number of task slots."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Time from the first start to the last end if each free slot takes the longest remaining training (Graham 1969).

    Args:
        seconds: Time of each training [s].
        slots: Number of trainings at the same time.

    Examples:
        >>> makespan([3.0, 2.0, 2.0, 1.0], 2)
        4.0
        >>> makespan([3.0, 2.0, 2.0, 1.0], 9)
        3.0
    """
    busy = [0.0] * slots
    for each in sorted(seconds, reverse=True):
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy)


def speed_ups(seconds: Sequence[float], most_slots: int) -> dict[int, float]:
    """Speed-up of the trainings on 1, 2, 4 ... slots over one slot, without the start-up of the tasks.

    Examples:
        >>> speed_ups([1.0, 1.0, 1.0], 4)
        {1: 1.0, 2: 1.5, 4: 3.0}
    """
    found, slots = {}, 1
    while slots <= most_slots:
        found[slots] = sum(seconds) / makespan(seconds, slots)
        slots *= 2
    return found
