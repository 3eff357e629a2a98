"""The cores of this machine."""

from __future__ import annotations

import os


def usable_cores() -> frozenset[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))
