"""`pytest --cpu-times`: processor time of each file of tests, which a busy machine hardly changes.

With that of the processes that tests start and wait for, or leave running: JVMs, ranks, commands.
"""

from __future__ import annotations

import contextlib
import resource
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import psutil
import pytest


def used() -> float:
    """Seconds of processor time of this process, of those that it waited for and of those that live."""
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(each.ru_utime + each.ru_stime for each in ended)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:4])
    return seconds


class CpuTimes:
    """Every report takes the time since the last one along, also from the processes of xdist."""

    def __init__(self, shown: int = 30) -> None:
        self._shown = shown
        self._last = used()
        self.processor: defaultdict[str, float] = defaultdict(float)
        self.wall: defaultdict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        """Collection belongs to no file."""
        self._last = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Note the time in the report."""
        report = yield
        now = used()
        report.user_properties = [*report.user_properties, ("processor time", now - self._last)]
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add it to that of the file."""
        file = report.nodeid.split("::")[0]
        self.wall[file] += report.duration
        self.processor[file] += float(str(dict(report.user_properties).get("processor time", 0.0)))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The files that took longest."""
        terminalreporter.section(
            f"{sum(self.processor.values()):.0f} s of processors, {sum(self.wall.values()):.0f} s of tests"
        )
        for file, seconds in sorted(self.processor.items(), key=lambda each: -each[1])[: self._shown]:
            terminalreporter.line(f"{seconds:8.1f} {self.wall[file]:8.1f}  {file}")
