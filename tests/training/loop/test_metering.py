"""The activity that a stall report names, and the bytes that a worker sends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from training.loop.metering import Meter, MeteredServer, MeteredTransport, MeteredVector
from training.transports.basics import run_now


class NotingTransport:
    """Stands in for a transport, a vector or a server; notes the meter's activity in each call.

    Each call sends 5 bytes, and makes an average unless `partner_is_free` is false.
    """

    rank, world_size, waited, layout = 0, 2, 0.0, None

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.bytes = self.begun = 0
        self.partner_is_free = True
        self.calls: list[tuple[str, tuple[Any, ...], str]] = []

    @property
    def counts(self) -> NotingTransport:
        return self

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, bool]]:
        async def call(*arguments: Any) -> bool:
            self.bytes += 5
            self.begun += self.partner_is_free
            self.calls.append((name, arguments[:1], self._meter.doing))
            return True

        return call


def metered_transport(inner: Any, meter: Meter) -> MeteredTransport:
    return MeteredTransport(inner, meter)


def metered_vector(inner: Any, meter: Meter) -> MeteredVector:
    return MeteredVector(inner, meter, nbytes=8, world_size=4)


def metered_server(inner: Any, meter: Meter) -> MeteredServer:
    return MeteredServer(inner, meter)


@pytest.mark.parametrize(
    ("wrap", "name", "arguments", "activity", "nbytes"),
    [
        (metered_transport, "barrier", (), "in a barrier", 0),
        (metered_transport, "count", ("tickets", 1), "counting", 0),
        (metered_vector, "add", (1,), "changing the own model", 0),
        (metered_vector, "read_from_rank", (3, np.zeros(1)), "reading the model of rank 3", 8),
        (metered_vector, "average_with", (3,), "averaging with rank 3", 16),
        (metered_vector, "begin_average_with", (3,), "averaging with rank 3", 16),
        (metered_server, "push", (1,), "changing the server", 5),
        (metered_server, "pull", (1,), "reading the server", 5),
    ],
)
def test_a_call_names_its_activity_and_counts_its_bytes_once(
    wrap: Callable[[Any, Meter], Any],
    name: str,
    arguments: tuple[Any, ...],
    activity: str,
    nbytes: int,
) -> None:
    meter = Meter(lambda: 0.0)
    inner = NotingTransport(meter)
    metered = wrap(inner, meter)

    for num_calls in (1, 2):
        run_now(getattr(metered, name)(*arguments))

        assert inner.calls == [(name, arguments[:1], activity)] * num_calls
        assert meter.doing == "starting"
        assert meter.bytes == num_calls * nbytes


@pytest.mark.parametrize("name", ["average_with", "begin_average_with"])
def test_only_averages_that_were_made_count_bytes(name: str) -> None:
    meter = Meter(lambda: 0.0)
    inner = NotingTransport(meter)
    metered = metered_vector(inner, meter)

    for is_free, nbytes in ((True, 16), (False, 16), (True, 32)):
        inner.partner_is_free = is_free
        run_now(getattr(metered, name)(3))

        assert meter.bytes == nbytes


def test_an_average_in_the_background_counts_its_bytes_at_the_next_call() -> None:
    meter = Meter(lambda: 0.0)
    inner = NotingTransport(meter)
    metered = metered_vector(inner, meter)
    inner.partner_is_free = False
    run_now(metered.begin_average_with(3))
    inner.begun += 1

    run_now(metered.drain())

    assert meter.bytes == 16
