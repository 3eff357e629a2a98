"""The load of other work: what the processors did, less what these processes did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hep_studies import other_work
from hep_studies.other_work import OtherWork


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The clocks of a machine, which a test moves on."""
    clocks = dict.fromkeys(("user", "idle", "iowait", "steal", "guest"), 100.0) | {"now": 0.0}

    def cpu_times() -> Any:
        return SimpleNamespace(
            _asdict=lambda: {part: time for part, time in clocks.items() if part != "now"}
        )

    monkeypatch.setattr("psutil.cpu_times", cpu_times)
    monkeypatch.setattr(other_work, "time", SimpleNamespace(perf_counter=lambda: clocks["now"]))
    return clocks


def test_the_load_is_the_time_of_the_processors_less_our_own(clocks: dict[str, float]) -> None:
    work = OtherWork()
    clocks["now"] += 10
    clocks["user"] += 12
    # Another virtual machine takes processors too. A guest's time is part of `user`.
    clocks["steal"] += 3
    clocks["guest"] += 5
    clocks["idle"] += 4
    clocks["iowait"] += 1

    assert work.busy_cores(own_seconds=8) == pytest.approx(0.7)


def test_the_load_is_not_below_0(clocks: dict[str, float]) -> None:
    work = OtherWork()
    clocks["now"] += 10
    clocks["user"] += 7.99

    assert work.busy_cores(own_seconds=8) == 0


def test_the_time_of_this_process_is_its_own() -> None:
    work = OtherWork()
    while work.own_seconds() < 0.05:
        pass
    assert work.own_seconds() < 10
