"""Progress away from a terminal: a line every few seconds, with rate and time left."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from pipeline.terminal import progress
from pipeline.terminal.progress import Bar


def test_lines_have_rate_and_time_left_and_do_not_come_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    with Bar(Console(file=out, width=200), "ingest", "events", 2000) as bar:
        for second in range(13):
            clock[0] = float(second)
            bar.add(100 if second else 0)
    lines = out.getvalue().splitlines()
    assert [line.strip() for line in lines] == [
        "ingest: 500/2000 events, 100/s, about 15 s left",
        "ingest: 1000/2000 events, 100/s, about 10 s left",
    ]


def test_work_that_stands_still_does_not_fill_the_log_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_OF_SILENCE", 0.01)
    out = io.StringIO()
    with Bar(Console(file=out, width=200), "ingest", "events", 940) as bar:
        for _ in range(100):
            # As of a Spark job whose tasks stand still.
            bar(5, 940)
            time.sleep(0.005)
    assert 1 <= len(out.getvalue().splitlines()) < 9


def test_on_a_terminal_there_is_a_bar_from_the_start_on() -> None:
    out = io.StringIO()
    with Bar(Console(file=out, width=150, force_terminal=True), "train", "steps") as bar:
        bar(0, 200)
        bar(50, 200, "epoch 1/4")
    shown = out.getvalue()
    assert "starting" in shown
    assert "50/200 steps" in shown
    assert "epoch 1/4" in shown


def test_without_news_a_line_says_that_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_OF_SILENCE", 0.05)
    out = io.StringIO()

    def wait_for(words: str) -> None:
        deadline = time.monotonic() + 10
        while not re.search(rf"  {re.escape(words)}, at work for \d+ s\n", out.getvalue()):
            assert time.monotonic() < deadline, out.getvalue()
            time.sleep(0.01)

    with Bar(Console(file=out, width=200), "evaluate", "events") as bar:
        wait_for("evaluate: starting")
        bar(0, 0, "training boosted trees")
        wait_for("evaluate: training boosted trees")
        bar(3, 4, "measuring [hlf]")
        wait_for("evaluate: 3/4 events, measuring [hlf]")
    ended = out.getvalue()
    time.sleep(0.1)
    assert out.getvalue() == ended
