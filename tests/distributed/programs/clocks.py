"""What ranks book under which kind when others make them wait, for test_clocks.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from training.loop.metering import Meter, MeteredTransport
from training.transports.locked_averaging import LockedAveraging
from training.transports.mpi import MpiTransport
from training.transports.transport import SharedVector, run_now


def book(nap: float, times: int) -> dict[str, dict[str, float]]:
    """Rank 1 comes late to each kind of meeting by a nap; seconds by kind, and the seconds on another clock."""
    transport = MpiTransport(overlap="inline")
    meter = Meter(transport.now)
    metered = MeteredTransport(transport, meter)
    vector = run_now(metered.share(np.zeros(2000)))
    message, other = np.zeros(2000), 1 - transport.rank

    def late(meet: Callable[[], Any]) -> None:
        if transport.rank:
            time.sleep(nap)
        meet()

    meetings: dict[str, Callable[[], None]] = {
        "barrier": lambda: late(lambda: run_now(metered.barrier())),
        "all-reduce": lambda: late(lambda: run_now(metered.all_reduce_sum(message))),
        "neighbours": lambda: late(lambda: run_now(_exchanged(metered, message, other))),
        "nobody": lambda: time.sleep(nap),
        "lock": lambda: _wait_for_lock(metered, vector, nap),
    }
    found = {}
    for name, meet in meetings.items():
        run_now(transport.barrier())
        started = time.monotonic()
        meter.lap("compute")
        meter.restart()
        for _ in range(times):
            meet()
        meter.lap("compute")
        found[name] = dict(meter.seconds) | {"on another clock": time.monotonic() - started}
    run_now(vector.close())
    transport.close()
    return found


async def _exchanged(transport: MeteredTransport, message: Any, other: int) -> None:
    exchange = transport.begin_exchange(message, [other])
    await exchange


def _wait_for_lock(transport: MeteredTransport, vector: SharedVector, nap: float) -> None:
    """Rank 1 holds both locks for a nap; rank 0 wants its own a tenth later, and to read the one of rank 1."""
    take_average = LockedAveraging._take_average

    def slowly(averaging: LockedAveraging) -> None:
        time.sleep(nap)
        take_average(averaging)

    run_now(transport.barrier())
    if transport.rank:
        LockedAveraging._take_average = slowly  # type: ignore[method-assign]
        run_now(vector.average_with(0))
        LockedAveraging._take_average = take_average  # type: ignore[method-assign]
    else:
        time.sleep(nap / 10)
        run_now(vector.add(np.ones(2000)))
        run_now(vector.read_of(1, np.empty(2000)))
