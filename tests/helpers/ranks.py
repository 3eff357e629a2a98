"""Counting and ending the MPI ranks that tests start."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def processes_of(marker: Path | str) -> list[psutil.Process]:
    """All processes with the given path or word in their command line."""
    results = []
    for process in psutil.process_iter(["cmdline", "status"]):
        message = process.info["cmdline"] or []
        if (
            any(str(marker) in word for word in message)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            results.append(process)
    return results


def has_started(pid: int, word: str) -> bool:
    """Whether a process has a child, or a child of one, with this word in its command line."""
    results = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            results += child.cmdline()
    return any(word in result for result in results)


def wait_until(condition: Callable[[], bool], *, label: str, seconds: float = 120) -> None:
    """Wait for a condition; fail the test in words if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"after {seconds} s still not: {label}")
        # Looking at all processes takes long: those that are waited for need the core.
        time.sleep(max(0.01, 3 * (now - asked)))
