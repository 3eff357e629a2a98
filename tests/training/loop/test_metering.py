"""What a worker is doing, for the report of a stall."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from training.loop.metering import Meter, _MeteredVector
from training.transports.basics import run_now


def test_a_stall_within_an_average_that_is_made_at_once_was_reported_as_computing() -> None:
    meter = Meter(lambda: 0.0)
    seen = []

    async def begin(partner: int) -> bool:
        seen.append((partner, meter.doing))
        return True

    shared: Any = SimpleNamespace(begin_average_with=begin, waited=0.0)
    assert run_now(_MeteredVector(shared, meter, 8).begin_average_with(3))
    assert seen == [(3, "averaging with rank 3")]
    assert meter.doing == "starting"
    assert meter.bytes == 16
