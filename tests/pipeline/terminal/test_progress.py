"""Progress, on a terminal and away from one."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from pipeline.terminal import progress
from pipeline.terminal.progress import Bar


def test_the_bar_of_a_terminal_has_the_rate_since_the_work_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, seconds = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[-1])

    with Bar(Console(file=out, width=150, force_terminal=True), "train", "steps") as bar:
        bar(0, 200)
        # The start of Spark or MPI is no work.
        seconds.append(100.0)
        bar(10, 200)
        seconds.append(110.0)
        bar(60, 200, "epoch 1/4")

    output = out.getvalue()
    assert "starting" in output
    assert "60/200 steps, 5/s, about 28 s left, epoch 1/4" in output


def test_lines_have_rate_and_time_left_or_the_duration_of_silent_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.01)
    out = io.StringIO()

    def wait_for(message: str) -> None:
        deadline = time.monotonic() + 10
        while not re.search(f"  ingest: {message}\n", out.getvalue()):
            assert time.monotonic() < deadline, out.getvalue()
            time.sleep(0.01)

    with Bar(Console(file=out, width=200), "ingest", "events", 2000) as bar:
        wait_for(r"starting, at work for \d+ s")
        bar.add(100)
        wait_for("100/2000 events")
        bar.add(400)
        wait_for(r"500/2000 events, [\d,]+/s, about \d+ s left")
        bar(0, 0, "measuring [hlf]")
        wait_for(r"measuring \[hlf\]")
        wait_for(r"measuring \[hlf\], at work for \d+ s")
    output = out.getvalue()
    time.sleep(0.1)
    assert out.getvalue() == output


def test_work_that_stands_still_prints_few_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.005)
    out = io.StringIO()

    with Bar(Console(file=out, width=200), "ingest", "events", 940) as bar:
        for _ in range(100):
            # As of a Spark job whose tasks stand still.
            bar(5, 940)
            time.sleep(0.005)

    assert 1 <= len(out.getvalue().splitlines()) < 12
