"""Measures how many cores of this machine other work keeps busy."""

from __future__ import annotations

import resource
import time
from typing import Final

import psutil

#: Parts of the processors' time that are no work, and parts that are counted in others too.
_NO_WORK: Final = ("idle", "iowait", "guest", "guest_nice")


class OtherWork:
    """The work of other processes of this machine since the object was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._busy_at_start = _busy_seconds()
        self._own_at_start = _own_seconds()

    def own_seconds(self) -> float:
        """Return the processor time of this process and of its ended children since the start."""
        return _own_seconds() - self._own_at_start

    def busy_cores(self, own_seconds: float) -> float:
        """Return how many cores other work kept busy on average; also another virtual machine.

        `own_seconds`: processor time since the start that is not of other work, summed over all
        processes [s].
        """
        busy_seconds = _busy_seconds() - self._busy_at_start
        seconds = time.perf_counter() - self._started
        # The kernel counts the time of a processor in ticks, so that the difference may be below 0.
        return max(0.0, (busy_seconds - own_seconds) / seconds)


def _busy_seconds() -> float:
    """Return the time for which the processors of this machine worked since it began [s]."""
    times = psutil.cpu_times()._asdict()
    return float(sum(seconds for part, seconds in times.items() if part not in _NO_WORK))


def _own_seconds() -> float:
    """Return the processor time of this process and of its ended children [s]."""
    total = 0.0
    for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(processes)
        total += usage.ru_utime + usage.ru_stime
    return total
