"""What ranks do with a transport apart from shared vectors, for test_transports.py."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import numpy as np

from training.errors import LaunchError
from training.transports import kernels, memory
from training.transports.basics import run_now
from training.transports.mpi import MpiTransport


def exchange(rounds: int, size: int) -> dict[str, Any]:
    """Rounds with neighbours that differ, two of them under way at a time; what came from whom."""
    transport = MpiTransport()
    rank, ranks = transport.rank, transport.world_size
    came: list[list[list[float]]] = []
    under_way: list[tuple[list[int], Any]] = []
    for index in range(rounds):
        step = 1 + index % (ranks - 1)
        neighbours = [(rank + step) % ranks, (rank - step) % ranks]
        vector = np.full(size, 100.0 * rank + index)
        under_way.append((neighbours, transport.begin_exchange(vector, neighbours)))
        if len(under_way) == 2:
            came.append(received(*under_way.pop(0)))
    came += [received(*transfer) for transfer in under_way]
    nobody = run_now(transport.begin_exchange(np.zeros(2), []))
    transport.close()
    return {"came": came, "nobody": nobody}


def received(neighbours: list[int], exchange: Any) -> list[list[float]]:
    """Neighbour, and smallest and largest element of what it sent."""
    theirs = run_now(exchange)
    return [
        [rank, vector.min(), vector.max()] for rank, vector in zip(neighbours, theirs, strict=True)
    ]


def exchange_in_background(size: int) -> dict[str, Any]:
    """Whether a large exchange ends while the worker makes no call, and what came."""
    transport = MpiTransport(background=True)
    partner = 1 - transport.rank
    exchange = transport.begin_exchange(np.full(size, 10.0 + transport.rank), [partner])

    assert transport._sums_thread is not None
    deadline = perf_counter() + 20
    while transport._sums_thread.is_under_way and perf_counter() < deadline:
        sleep(1e-3)
    has_ended = not transport._sums_thread.is_under_way
    came = received([partner], exchange)
    transport.close()
    return {"has_ended": has_ended, "came": came}


def fail_to_start() -> str:
    """There is no room for memory that the ranks share; what the user gets to read."""
    memory.shutil.disk_usage = lambda _: memory.shutil._ntuple_diskusage(10**6, 10**6 - 100, 100)  # type: ignore[attr-defined]
    try:
        run_now(MpiTransport().shared_vector(np.zeros(1000)))
    except LaunchError as error:
        return str(error)
    return ""


def load_late(rank: int, nap: float) -> dict[str, float]:
    """A rank takes some time to load the code of its first count [s]; when, on each rank, the
    counters were open, and when the first count ended."""
    transport = MpiTransport()
    fetch_and_add = kernels.fetch_and_add
    ends = []

    def load_and_add(*arguments: Any) -> int:
        if transport.rank == rank and not ends:
            sleep(nap)
        value: int = fetch_and_add(*arguments)
        ends.append(perf_counter())
        return value

    kernels.fetch_and_add = load_and_add
    run_now(transport.open_counters())
    opened = perf_counter()
    tickets = run_now(transport.count("tickets", 1))
    kernels.fetch_and_add = fetch_and_add
    transport.close()
    return {"opened": opened, "first_count": ends[0], "tickets": tickets}


def count_at_a_busy_owner(counts: list[int], *, patience: float) -> dict[str, Any]:
    """Rank 1 counts samples while rank 0 can answer no request: whether it waited, its totals, and
    the total of rank 0 after a ticket."""
    transport = MpiTransport(shares_memory=False)
    run_now(transport.open_counters())
    assert transport._shared_counters is not None
    memory = transport._shared_counters._memory
    results: dict[str, Any] = {}
    if transport.rank == 0:
        kernels.lock(memory.heads[0])
        transport.comm.Barrier()
        all_counted = transport.comm.Ibarrier()
        results["waited"] = not is_true_in_time(all_counted.Test, patience)
        kernels.unlock(memory.heads[0])
        all_counted.Wait()
        transport.comm.Barrier()
        # The message of the last samples may still be on its way.
        is_true_in_time(lambda: bool(memory.rows[0][0][0] == sum(counts)), patience)
        results["total"] = run_now(transport.count("samples", 0))
    else:
        transport.comm.Barrier()
        results["totals"] = [run_now(transport.count("samples", count)) for count in counts]
        transport.comm.Ibarrier().Wait()
        results["ticket"] = run_now(transport.count("tickets", 1))
        transport.comm.Barrier()
    transport.close()
    return results


def is_true_in_time(predicate: Callable[[], bool], seconds: float) -> bool:
    """Whether a predicate becomes true within some seconds."""
    deadline = perf_counter() + seconds
    while not predicate():
        if perf_counter() > deadline:
            return False
        sleep(1e-3)
    return True
