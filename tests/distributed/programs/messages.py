"""What ranks do with a transport apart from shared vectors, for test_messages.py."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from training.errors import LaunchError
from training.transports import mpi, self_test, window_memory
from training.transports.basics import run_now
from training.transports.loading import load_mpi
from training.transports.mpi import MpiTransport

MPI = load_mpi()


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
    shared = run_now(transport.share(np.zeros(1)))
    run_now(transport.barrier())
    seen = [run_now(transport.count("samples", transport.rank + 1)) for _ in range(times)]
    run_now(transport.barrier())
    total = run_now(transport.count("samples", 0))
    run_now(shared.close())
    transport.close()
    return {"seen": seen, "total": total}


def alone(protocol: Any, overlap: Any) -> dict[str, Any]:
    """A world of one."""
    transport = MpiTransport(protocol=protocol, overlap=overlap)
    vector = np.arange(3.0)
    run_now(transport.all_reduce_sum(vector))
    run_now(transport.broadcast(vector))
    run_now(transport.barrier())
    shared = run_now(transport.share(vector))
    averages = run_now(shared.add(np.ones(3)))
    run_now(shared.drain())
    out = np.empty(3)
    run_now(shared.read(out))
    words = ""
    try:
        shared.begin_average_with(0)
    except AssertionError as error:
        words = str(error)
    samples = [run_now(transport.count("samples", 2)) for _ in range(2)]
    run_now(shared.close())
    transport.close()
    return {
        "world": transport.world_size,
        "out": out.tolist(),
        "averages": averages,
        "words": words,
        "samples": samples,
    }


def overlaps(
    cores: list[list[int]], *, help_needed: bool = False, share_memory: bool = True, one_thread: bool = False
) -> dict[str, str]:
    """When averages are made if the transport chooses, by protocol; each rank may use some cores."""
    level = MPI.THREAD_FUNNELED if one_thread else MPI.THREAD_MULTIPLE
    found = {}
    with (
        patch.object(mpi, "usable_cores", lambda: frozenset(cores[MPI.COMM_WORLD.rank])),
        patch.object(mpi, "self_test", lambda _: self_test.SelfTest([], "Some MPI", 0.0, help_needed)),
        patch.object(mpi, "_share_memory", lambda _: share_memory),
        patch.object(MPI, "Query_thread", lambda: level),
    ):
        for protocol in ("locked", "additive", "sockets"):
            transport = MpiTransport(protocol=protocol, overlap="auto")
            found[protocol] = transport.overlap
            transport.close()
    return found


def several(vectors: int) -> list[float]:
    """More than one shared vector, and a second transport after the first."""
    found = []
    for _ in range(2):
        transport = MpiTransport(overlap="inline")
        shared = [run_now(transport.share(np.full(10, float(number)))) for number in range(vectors)]
        out = np.empty(10)
        for each in shared:
            run_now(each.average_with((transport.rank + 1) % transport.world_size))
            run_now(each.read(out))
            found.append(float(out.mean()))
        for each in shared:
            run_now(each.close())
        transport.close()
    return found


def fail_to_start(why: str) -> str:
    """Reasons for which one-sided communication cannot be used; what the user gets to read."""
    wrong = self_test.SelfTest(["rank 0: locks: 20 times 1 was added, 19 is there"], "Some MPI", 0.0, False)
    if why == "self-test":
        mpi.self_test = lambda _: wrong
    if why == "room":
        window_memory.shutil.disk_usage = lambda _: shutil_usage(100)
    try:
        run_now(MpiTransport().share(np.zeros(1000)))
    except LaunchError as error:
        return str(error)
    return ""


def shutil_usage(free: int) -> Any:
    """A file system with little room."""
    return window_memory.shutil._ntuple_diskusage(10**6, 10**6 - free, free)


def start_up_test() -> dict[str, Any]:
    """What it finds."""
    return self_test.self_test(mpi.load_mpi().COMM_WORLD)._asdict()
