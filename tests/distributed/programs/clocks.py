"""What ranks book under which kind when others make them wait, for test_clocks.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from training.loop.metering import Meter, MeteredTransport
from training.transports import kernels
from training.transports.basics import run_now
from training.transports.mpi import MpiTransport
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import Shard

Span = tuple[float, float]


def book(nap: float, times: int) -> dict[str, dict[str, Any]]:
    """Rank 1 comes late to each kind of meeting by a nap.

    Returns for each: seconds by kind; the least and the most seconds that they may add up to, on
    another clock; and when this rank began to meet and was done, each time. For lock and push: when
    one rank held the lock, and when the other wanted it.
    """
    transport = MpiTransport()
    meter = Meter(transport.now)
    metered = MeteredTransport(transport, meter)
    vector = run_now(metered.shared_vector(np.zeros(2000)))
    server = run_now(metered.parameter_server(np.zeros(2000)))
    message, second = np.zeros(2000), 1 - transport.rank

    def late(meet: Callable[[], Any]) -> Span:
        if transport.rank:
            time.sleep(nap)
        begun = time.monotonic()
        meet()
        return begun, time.monotonic()

    meetings: dict[str, Callable[[], Span | None]] = {
        "barrier": lambda: late(lambda: run_now(metered.barrier())),
        "all-reduce": lambda: late(lambda: run_now(metered.all_reduce_sum(message))),
        "neighbours": lambda: late(lambda: run_now(_exchanged(metered, message, second))),
        "nobody": lambda: time.sleep(nap),
        "lock": lambda: _wait_for_lock(transport, vector, nap),
        "count": lambda: _count(transport, metered, nap),
        "push": lambda: _wait_for_push(transport, server, nap),
    }
    clocks = {}
    for name, meet in meetings.items():
        run_now(transport.barrier())
        # The meter is read between the outer and the inner moments, whenever the system stops this
        # process.
        moments = [time.monotonic()]
        meter.lap("compute")
        meter.restart()
        moments.append(time.monotonic())
        spans = [meet() for _ in range(times)]
        moments.append(time.monotonic())
        meter.lap("compute")
        moments.append(time.monotonic())
        clocks[name] = {
            "kinds": dict(meter.seconds),
            "wall": [moments[2] - moments[1], moments[3] - moments[0]],
            "spans": spans,
        }
    run_now(server.close())
    run_now(vector.close())
    transport.close()
    return clocks


async def _exchanged(transport: MeteredTransport, message: Any, second: int) -> None:
    exchange = transport.begin_exchange(message, [second])
    await exchange


def _wait_for_lock(transport: MpiTransport, vector: Any, nap: float) -> Span:
    """Rank 1 holds both mutexes for a nap.

    Rank 0 wants its own a tenth later, and to read the one of rank 1.
    """
    run_now(transport.barrier())
    if transport.rank:
        heads, begun = vector._vector.memory.heads.values(), time.monotonic()
        for head in heads:
            kernels.lock(head)
        time.sleep(nap)
        for head in heads:
            kernels.unlock(head)
        return begun, time.monotonic()
    time.sleep(nap / 10)
    begun = time.monotonic()
    run_now(vector.add(np.ones(2000)))
    run_now(vector.read_from_rank(1, np.empty(2000)))
    return begun, time.monotonic()


def _count(transport: MpiTransport, metered: MeteredTransport, nap: float) -> None:
    """Add to a counter, which takes a nap."""
    add = kernels.fetch_and_add

    def slowly(*arguments: Any) -> int:
        time.sleep(nap)
        return int(add(*arguments))

    kernels.fetch_and_add = slowly
    run_now(metered.count("samples", 1))
    kernels.fetch_and_add = add


def _wait_for_push(transport: MpiTransport, server: ParameterServer, nap: float) -> Span:
    """Rank 1 holds the lock of the server for a nap; rank 0 wants to push a tenth later."""
    held: list[Span] = []

    def slowly(_: Shard) -> None:
        begun = time.monotonic()
        time.sleep(nap)
        held.append((begun, time.monotonic()))

    run_now(transport.barrier())
    if transport.rank:
        run_now(server.push(slowly))
        return held[0]
    time.sleep(nap / 10)
    begun = time.monotonic()
    run_now(server.push(lambda _: None))
    return begun, time.monotonic()
