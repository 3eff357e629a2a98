"""What a worker is doing, for the report of a stall, and the bytes that it sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from training.loop.metering import Meter, MeteredTransport, _MeteredServer, _MeteredVector
from training.transports.basics import run_now


class Fake(SimpleNamespace):
    """Notes what the meter says within a call; each sends 5 bytes."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(
            rank=0,
            world_size=2,
            waited=0.0,
            now=lambda: 0.0,
            counts=SimpleNamespace(bytes=0),
            seen=[],
        )
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any) -> bool:
            self.counts.bytes += 5
            self.seen.append((name, arguments, self._meter.doing))
            return True

        return call


@pytest.mark.parametrize(
    ("kind", "name", "arguments", "doing", "nbytes"),
    [
        (MeteredTransport, "barrier", (), "in a barrier", 0),
        (MeteredTransport, "count", ("tickets", 1), "counting", 0),
        (_MeteredVector, "add", (1,), "changing the own model", 0),
        (_MeteredVector, "read_from_rank", (3, 1), "reading the model of rank 3", 8),
        (_MeteredVector, "average_with", (3,), "averaging with rank 3", 16),
        # A stall within an average that is made at once was reported as computing.
        (_MeteredVector, "begin_average_with", (3,), "averaging with rank 3", 16),
        (_MeteredServer, "push", (1,), "changing the server", 5),
        (_MeteredServer, "pull", (1,), "reading the server", 5),
    ],
)
def test_a_call_says_what_it_does_and_books_its_bytes_once(
    kind: Any, name: str, arguments: tuple[Any, ...], doing: str, nbytes: int
) -> None:
    meter = Meter(lambda: 0.0)
    inner = Fake(meter)
    metered = kind(inner, meter, *([] if kind is MeteredTransport else [8]))
    for times in (1, 2):
        run_now(getattr(metered, name)(*arguments))
        assert inner.seen == [(name, arguments, doing)] * times
        assert meter.doing == "starting"
        assert meter.bytes == times * nbytes
