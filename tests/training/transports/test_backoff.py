"""Backoff between looks."""

from __future__ import annotations

import os
import time

import pytest

from training.transports.basics import Backoff


def test_the_first_pauses_are_no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nap of length 0 took 75 microseconds, so a push that another worker was at took six times as long."""
    naps: list[float] = []
    yields: list[None] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(None))
    backoff = Backoff(longest=3.5e-5)
    for _ in range(20):
        backoff.pause()
    assert len(yields) == 20
    assert naps == []
    for _ in range(100):
        backoff.pause()
    assert naps[:3] == [1e-5, 2e-5, 3.5e-5]
    assert set(naps[3:]) == {3.5e-5}
    assert len(yields) + len(naps) == 120
