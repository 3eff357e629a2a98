"""`python -m features` compiles what the first run calls."""

from __future__ import annotations

from typing import Any

import pytest
from event_rows import event_row, events_table, lepton, track
from numba import typeof

from features import unmixed_files
from features.__main__ import compile_kernels
from features.arrays import events_from_arrow
from ingestion.schema import events_schema

FLAVOURS = ["electron", "muon"]


def test_kernels_get_arrays_of_the_same_types_with_and_without_events() -> None:
    event = event_row(
        electrons=[lepton(30.0, 0.0, 0.0)],
        muons=[lepton(40.0, 1.0, 1.0)],
        tracks=[track(2.0, 0, 0)],
    )

    without_events = events_from_arrow(events_schema().empty_table(), FLAVOURS)
    with_events = events_from_arrow(events_table([event, event]), FLAVOURS)

    assert typeof(without_events) == typeof(with_events)


def test_the_mixing_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(unmixed_files, "copy_runs", lambda *arguments: called.append(arguments))

    compile_kernels()

    dtypes = {target.dtype.name for _, _, _, target, _ in called}
    assert dtypes == {"int8", "int32", "float32"}
