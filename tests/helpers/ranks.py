"""Counting and ending the MPI ranks that tests start."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def processes_of(marker: Path | str) -> list[psutil.Process]:
    """All processes with a path or word in their command line."""
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        has_marker = any(str(marker) in argument for argument in arguments)
        if has_marker and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def has_started(pid: int, word: str) -> bool:
    """True if a process below another has a word in its command line."""
    arguments = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            arguments += child.cmdline()
    return any(word in argument for argument in arguments)


def wait_until(condition: Callable[[], bool], *, label: str, seconds: float = 120) -> None:
    """Wait for a condition; the error names it if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while True:
        started = time.monotonic()
        if condition():
            return
        ended = time.monotonic()
        if ended > deadline:
            raise AssertionError(f"after {seconds} s still not: {label}")
        # Listing all processes takes long, and the awaited ones need the core.
        time.sleep(max(0.01, 3 * (ended - started)))
