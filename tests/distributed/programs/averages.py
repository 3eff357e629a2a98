"""What ranks do with shared vectors, for test_transports.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from training.transports import kernels
from training.transports.basics import Vector, load_mpi, run_now
from training.transports.mpi import MpiTransport

MPI = load_mpi()


def random_partner(rng: np.random.Generator, transport: MpiTransport) -> int:
    """Any other rank."""
    selected = int(rng.integers(transport.world_size - 1))
    return selected + (selected >= transport.rank)


def summed(transport: MpiTransport, vector: Vector) -> Vector:
    """The sum over all ranks."""
    total = vector.copy()
    run_now(transport.all_reduce_sum(total))
    return total


@contextmanager
def sharing(
    start: Callable[[int], Vector], *, in_memory: bool = True
) -> Iterator[tuple[MpiTransport, Any]]:
    """A transport, and the shared vector of its rank, until the end of the block."""
    transport = MpiTransport(shares_memory=in_memory)
    vector = run_now(transport.shared_vector(start(transport.rank)))
    yield transport, vector
    run_now(vector.close())
    transport.close()


def conserve(
    in_memory: bool, averages: int, size: int = 33, dtype: str = "float64"
) -> dict[str, Any]:
    """All ranks average and add at once; is anything of the sum lost?"""
    transport = MpiTransport(shares_memory=in_memory)
    rng = np.random.default_rng([transport.rank, 1])
    start = rng.integers(-(10**6), 10**6, size).astype(dtype)
    added, actual = np.zeros(size, dtype), np.empty(size, dtype)
    vector = run_now(transport.shared_vector(start))
    versions = [run_now(vector.read(actual))]
    while vector.counts.begun < averages:
        run_now(vector.begin_average_with(random_partner(rng, transport)))
        if vector.counts.begun % 3 == 0:
            change = rng.integers(-1000, 1000, size).astype(dtype)
            added += change
            versions.append(run_now(vector.add(change)))
        else:
            versions.append(run_now(vector.read(actual)))
    run_now(vector.drain())
    run_now(transport.barrier())
    versions.append(run_now(vector.read(actual)))
    counts = vector.counts
    result = {
        "difference": np.unique(
            summed(transport, actual) - summed(transport, start + added)
        ).tolist(),
        "counts": asdict(counts),
        "last_version": versions[-1],
        "versions_grow": versions == sorted(versions),
        "on_host": len(transport.process.on_host),
        "distance": float(np.abs(actual - summed(transport, actual) / transport.world_size).max()),
    }
    run_now(vector.close())
    transport.close()
    return result


def stamps(in_memory: bool, averages: int, size: int) -> dict[str, Any]:
    """All elements of a vector stay the same number; a read that sees a change half done is torn.

    The first half of the ranks only read, again and again, until the others have averaged with them. These average
    until every reader has read some times.
    """
    with sharing(lambda rank: np.full(size, 1000.0 * rank), in_memory=in_memory) as (
        transport,
        vector,
    ):
        rng = np.random.default_rng([transport.rank, 2])
        num_readers = transport.world_size // 2
        actual, change = np.empty(size), np.empty(size)
        torn = reads = index = 0
        is_reader = transport.rank < num_readers
        readers_have_read = None if is_reader else transport.comm.Ibarrier()
        writers_are_done = None
        while writers_are_done is None or not writers_are_done.Test():
            if is_reader:
                # Their own vectors, and those of the others, which these change.
                second = num_readers + reads // 2 % num_readers
                run_now(vector.read_from_rank(second, actual) if reads % 2 else vector.read(actual))
                reads += 1
                torn += bool(actual.min() != actual.max())
                if reads == 25:
                    readers_have_read, writers_are_done = (
                        transport.comm.Ibarrier(),
                        transport.comm.Ibarrier(),
                    )
            elif writers_are_done is None:
                change.fill(rng.integers(10))
                run_now(vector.add(change))
                run_now(vector.average_with(index % num_readers))
                index += 1
                if index >= averages and readers_have_read.Test():
                    writers_are_done = transport.comm.Ibarrier()
        readers_have_read.Wait()
    return {"torn": torn, "reads": reads}


def straggle(in_memory: bool, folder: str, nap: float, averages: int) -> dict[str, float]:
    """The last rank sleeps until the others, which average with all, have said in a folder that they are done.

    Who is not done before the nap ends, was kept waiting. Returns when who was done.
    """
    with sharing(lambda rank: np.full(2013, rank, np.float32), in_memory=in_memory) as (
        transport,
        vector,
    ):
        rng = np.random.default_rng([transport.rank, 4])
        run_now(transport.barrier())
        signs = Path(folder)
        if transport.rank == transport.world_size - 1:
            end = time.monotonic() + nap
            while len(list(signs.iterdir())) < transport.rank and time.monotonic() < end:
                time.sleep(0.01)
        else:
            while vector.counts.begun < averages:
                run_now(vector.begin_average_with(random_partner(rng, transport)))
                run_now(vector.drain())
        start_time = time.monotonic()
        if transport.rank < transport.world_size - 1:
            (signs / f"{transport.rank}").touch()
    return {"done": start_time, **asdict(vector.counts)}


def take_over(folder: str) -> dict[str, Any]:
    """In turn, a process that shares the vector of a rank is killed while it has the mutex; then both ranks average."""
    with sharing(lambda rank: np.full(3, float(rank))) as (transport, vector):
        works = []
        for victim in range(2):
            sign = Path(folder, f"has it {victim}")
            if transport.rank == victim:
                child = os.fork()
                if not child:
                    kernels.lock(vector._head)
                    sign.touch()
                    signal.pause()
                while not sign.exists():
                    time.sleep(1e-3)
            run_now(transport.barrier())
            if transport.rank != victim:
                # Its holder may be stopped: who wants it gives up soon, and makes no average.
                run_now(vector.begin_average_with(victim))
            run_now(transport.barrier())
            if transport.rank == victim:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                run_now(vector.add(np.ones(3)))
            works += [kernels.try_lock(vector._head), not kernels.try_lock(vector._head)]
            kernels.unlock(vector._head)
            run_now(transport.barrier())
            if transport.rank != victim:
                run_now(vector.begin_average_with(victim))
            run_now(transport.barrier())
        actual = np.empty(3)
        run_now(vector.read(actual))
    return {"skipped": vector.counts.skipped, "works": works, "found": actual.tolist()}


def skip() -> dict[str, Any]:
    """Rank 0 begins more averages while the thread of its partner waits for the mutex of its vector."""
    with sharing(lambda _: np.zeros(3), in_memory=False) as (transport, vector):
        if transport.rank:
            kernels.lock(vector._head)
        run_now(transport.barrier())
        if not transport.rank:
            for partner in (1, 2, 1):
                run_now(vector.begin_average_with(partner))
        run_now(transport.barrier())
        if transport.rank:
            kernels.unlock(vector._head)
        else:
            run_now(vector.drain())
            run_now(vector.begin_average_with(2))
    return asdict(vector.counts)


def poison(in_memory: bool) -> dict[str, Any]:
    """The vector of rank 0 is not finite, and everybody averages with everybody, after they have read all vectors."""

    def start(rank: int) -> Vector:
        start = np.full(1000, rank + 1, np.float32)
        start[500] = np.nan if rank == 0 else rank + 1
        return start

    with sharing(start, in_memory=in_memory) as (transport, vector):
        actual, seen = np.empty(1000, np.float32), []
        for rank in range(transport.world_size):
            run_now(vector.read_from_rank(rank, actual))
            seen.append(float(actual[0]))
        run_now(transport.barrier())
        rng = np.random.default_rng([transport.rank, 5])
        for _ in range(50):
            run_now(vector.begin_average_with(random_partner(rng, transport)))
            run_now(vector.drain())
        run_now(transport.barrier())
        run_now(vector.read(actual))
    return {"seen": seen, "finite": bool(np.isfinite(actual).all()), **asdict(vector.counts)}


def between_hosts(step: float, averages: int) -> dict[str, Any]:
    """Averages that the owner waits for, and averages in the background; how long they took."""
    actual: dict[str, Any] = {}
    for way in ("waited", "beside"):
        transport = MpiTransport()
        start = np.full(2013, float(transport.rank), np.float32)
        vector = run_now(transport.shared_vector(start))
        run_now(transport.barrier())
        # One average more, which connects and compiles.
        seconds = []
        for _ in range(averages + 1):
            start_before, partner = time.perf_counter(), (transport.rank + 1) % transport.world_size
            if way == "waited":
                run_now(vector.average_with(partner))
            else:
                run_now(vector.begin_average_with(partner))
            seconds.append(time.perf_counter() - start_before)
            if way == "beside":
                time.sleep(step)
                if len(seconds) == 1:
                    # What it takes to connect and to compile is no time that an average costs.
                    run_now(vector.drain())
                    vector._background.blocked_seconds = 0.0
        run_now(vector.drain())
        run_now(transport.barrier())
        run_now(vector.read(start))
        total = float(summed(transport, start)[0])
        actual[way] = {
            "median": sorted(seconds[1:])[averages // 2],
            "sum": total,
            **asdict(vector.counts),
        }
        run_now(vector.close())
        transport.close()
    return actual
