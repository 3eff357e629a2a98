"""What ranks do with a transport apart from shared vectors, for test_transports.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from training.errors import LaunchError
from training.transports import memory
from training.transports.basics import run_now
from training.transports.mpi import MpiTransport


def collect(dtype: str) -> dict[str, Any]:
    """Sum and broadcast vectors in place."""
    transport = MpiTransport()
    summed = (np.arange(4) + 0.5 + transport.rank).astype(dtype)
    sent = (np.arange(4) + 0.25 + transport.rank).astype(dtype)
    run_now(transport.all_reduce_sum(summed))
    run_now(transport.broadcast(sent))
    before = transport.now()
    run_now(transport.barrier())
    later = transport.now() >= before
    transport.close()
    return {
        "sum": summed.tolist(),
        "sent": sent.tolist(),
        "dtypes": [str(summed.dtype), str(sent.dtype)],
        "later": later,
    }


def exchange(rounds: int, size: int) -> dict[str, Any]:
    """Rounds with neighbours that differ, two of them under way at a time; what came from whom."""
    transport = MpiTransport()
    rank, ranks = transport.rank, transport.world_size
    came: list[list[list[float]]] = []
    under_way: list[tuple[list[int], Any]] = []
    for number in range(rounds):
        step = 1 + number % (ranks - 1)
        neighbours = [(rank + step) % ranks, (rank - step) % ranks]
        vector = np.full(size, 100.0 * rank + number)
        under_way.append((neighbours, transport.begin_exchange(vector, neighbours)))
        if len(under_way) == 2:
            came.append(received(*under_way.pop(0)))
    came += [received(*each) for each in under_way]
    nobody = run_now(transport.begin_exchange(np.zeros(2), []))
    transport.close()
    return {"came": came, "nobody": nobody}


def received(neighbours: list[int], exchange: Any) -> list[list[float]]:
    """Neighbour, and smallest and largest element of what it sent."""
    theirs = run_now(exchange)
    return [[rank, each.min(), each.max()] for rank, each in zip(neighbours, theirs, strict=True)]


def count(times: int) -> dict[str, Any]:
    """All ranks count samples at once."""
    transport = MpiTransport()
    shared = run_now(transport.shared_vector(np.zeros(1)))
    run_now(transport.barrier())
    seen = [run_now(transport.count("samples", transport.rank + 1)) for _ in range(times)]
    run_now(transport.barrier())
    total = run_now(transport.count("samples", 0))
    run_now(shared.close())
    transport.close()
    return {"seen": seen, "total": total}


def alone(in_memory: bool) -> dict[str, Any]:
    """A world of one."""
    transport = MpiTransport(shares_memory=in_memory)
    vector = np.arange(3.0)
    run_now(transport.all_reduce_sum(vector))
    run_now(transport.broadcast(vector))
    run_now(transport.barrier())
    shared = run_now(transport.shared_vector(vector))
    averages = run_now(shared.add(np.ones(3)))
    run_now(shared.drain())
    out = np.empty(3)
    run_now(shared.read(out))
    samples = [run_now(transport.count("samples", 2)) for _ in range(2)]
    run_now(shared.close())
    transport.close()
    return {
        "world": transport.world_size,
        "out": out.tolist(),
        "averages": averages,
        "samples": samples,
    }


def several(vectors: int) -> list[float]:
    """More than one shared vector, and a second transport after the first."""
    found = []
    for _ in range(2):
        transport = MpiTransport()
        shared = [run_now(transport.shared_vector(np.full(10, float(number)))) for number in range(vectors)]
        out = np.empty(10)
        for each in shared:
            run_now(each.average_with((transport.rank + 1) % transport.world_size))
            run_now(each.read(out))
            found.append(float(out.mean()))
        for each in shared:
            run_now(each.close())
        transport.close()
    return found


def fail_to_start() -> str:
    """There is no room for memory that the ranks share; what the user gets to read."""
    memory.shutil.disk_usage = lambda _: memory.shutil._ntuple_diskusage(10**6, 10**6 - 100, 100)  # type: ignore[attr-defined]
    try:
        run_now(MpiTransport().shared_vector(np.zeros(1000)))
    except LaunchError as error:
        return str(error)
    return ""
