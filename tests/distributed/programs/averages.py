"""Programs of ranks with shared vectors, for test_transports.py."""

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
    partner = int(rng.integers(transport.world_size - 1))
    if partner >= transport.rank:
        return partner + 1
    return partner


def sum_over_ranks(transport: MpiTransport, vector: Vector) -> Vector:
    total = vector.copy()
    run_now(transport.all_reduce_sum(total))
    return total


def read(vector: Any) -> Vector:
    out = np.empty_like(vector.values)
    run_now(vector.read(out))
    return out


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
    """All ranks average and add at once.

    Returns the difference of the sum over all to what it should be.
    """
    rng = np.random.default_rng([MPI.COMM_WORLD.rank, 1])
    start = rng.integers(-(10**6), 10**6, size).astype(dtype)
    expected, out = start.copy(), np.empty(size, dtype)
    with sharing(lambda _: start, in_memory=in_memory) as (transport, vector):
        versions = [run_now(vector.read(out))]
        while vector.counts.begun < averages:
            run_now(vector.begin_average_with(random_partner(rng, transport)))
            if vector.counts.begun % 3 == 0:
                change = rng.integers(-1000, 1000, size).astype(dtype)
                expected += change
                versions.append(run_now(vector.add(change)))
            else:
                versions.append(run_now(vector.read(out)))
        run_now(vector.drain())
        run_now(transport.barrier())
        versions.append(run_now(vector.read(out)))
        total = sum_over_ranks(transport, out)
        difference = total - sum_over_ranks(transport, expected)
        return {
            "difference": np.unique(difference).tolist(),
            "counts": asdict(vector.counts),
            "last_version": versions[-1],
            "versions_grow": versions == sorted(versions),
            "on_host": len(transport.process.on_host),
            "distance": float(np.abs(out - total / transport.world_size).max()),
        }


def stamps(in_memory: bool, averages: int, size: int) -> dict[str, Any]:
    """All elements of a vector stay the same number; a read that sees a change half done is torn.

    The first half of the ranks only read, until the others have averaged with them. The others
    average until every reader has read 25 times.
    """
    with sharing(lambda rank: np.full(size, 1000.0 * rank), in_memory=in_memory) as (
        transport,
        vector,
    ):
        num_readers = transport.world_size // 2
        if transport.rank < num_readers:
            return _read_stamps(transport, vector, num_readers)
        return _write_stamps(transport, vector, num_readers, averages)


def _read_stamps(transport: MpiTransport, vector: Any, num_readers: int) -> dict[str, Any]:
    out = np.empty_like(vector.values)
    num_reads = num_torn = 0
    all_have_read = writers_are_done = None
    while writers_are_done is None or not writers_are_done.Test():
        if num_reads % 2:
            # The vector of a writer, which others change.
            writer = num_readers + num_reads // 2 % num_readers
            run_now(vector.read_from_rank(writer, out))
        else:
            run_now(vector.read(out))
        num_reads += 1
        if out.min() != out.max():
            num_torn += 1
        if num_reads == 25:
            all_have_read = transport.comm.Ibarrier()
            writers_are_done = transport.comm.Ibarrier()
    all_have_read.Wait()
    return {"torn": num_torn, "reads": num_reads}


def _write_stamps(
    transport: MpiTransport, vector: Any, num_readers: int, averages: int
) -> dict[str, Any]:
    rng = np.random.default_rng([transport.rank, 2])
    change = np.empty_like(vector.values)
    all_have_read = transport.comm.Ibarrier()
    num_averages = 0
    while num_averages < averages or not all_have_read.Test():
        change.fill(rng.integers(10))
        run_now(vector.add(change))
        run_now(vector.average_with(num_averages % num_readers))
        num_averages += 1
    transport.comm.Ibarrier().Wait()
    return {}


def straggle(in_memory: bool, folder: str, nap: float, averages: int) -> dict[str, float]:
    """The last rank sleeps until the others, which average with all, have each made a file.

    A rank that is not done before the nap ends had to wait. Returns when each rank was done.
    """
    with sharing(lambda rank: np.full(2013, rank, np.float32), in_memory=in_memory) as (
        transport,
        vector,
    ):
        rng = np.random.default_rng([transport.rank, 4])
        run_now(transport.barrier())
        done_files = Path(folder)
        if transport.rank == transport.world_size - 1:
            end = time.monotonic() + nap
            while len(list(done_files.iterdir())) < transport.rank and time.monotonic() < end:
                time.sleep(0.01)
        else:
            while vector.counts.begun < averages:
                run_now(vector.begin_average_with(random_partner(rng, transport)))
                run_now(vector.drain())
        done_time = time.monotonic()
        if transport.rank < transport.world_size - 1:
            (done_files / f"{transport.rank}").touch()
    return {"done": done_time, **asdict(vector.counts)}


def take_over(folder: str) -> dict[str, Any]:
    """In turn, a process that shares the vector of a rank is killed while it has the mutex.

    Then both ranks average.
    """
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
        vector_at_end = read(vector).tolist()
    return {"skipped": vector.counts.skipped, "works": works, "vector": vector_at_end}


def skip() -> dict[str, Any]:
    """Rank 0 begins more averages while the thread of its partner waits for a mutex."""
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
    """The vector of rank 0 is not finite; all read all vectors, and then average in pairs."""

    def start(rank: int) -> Vector:
        vector = np.full(1000, rank + 1, np.float32)
        if rank == 0:
            vector[500] = np.nan
        return vector

    with sharing(start, in_memory=in_memory) as (transport, vector):
        out = np.empty(1000, np.float32)
        first_elements = []
        for rank in range(transport.world_size):
            run_now(vector.read_from_rank(rank, out))
            first_elements.append(float(out[0]))
        run_now(transport.barrier())
        rng = np.random.default_rng([transport.rank, 5])
        for _ in range(50):
            run_now(vector.begin_average_with(random_partner(rng, transport)))
            run_now(vector.drain())
        run_now(transport.barrier())
        is_finite = bool(np.isfinite(read(vector)).all())
    return {"first_elements": first_elements, "finite": is_finite, **asdict(vector.counts)}


def between_hosts(step: float, averages: int) -> dict[str, Any]:
    """Averages that the owner waits for, and averages in the background; how long they took [s]."""
    return {
        "waited": _time_averages(averages, step=None),
        "beside": _time_averages(averages, step=step),
    }


def _time_averages(averages: int, *, step: float | None) -> dict[str, Any]:
    """Make averages with the next rank.

    In the background of steps, if their length [s] is given.
    """
    with sharing(lambda rank: np.full(2013, float(rank), np.float32)) as (transport, vector):
        partner = (transport.rank + 1) % transport.world_size
        run_now(transport.barrier())
        seconds = []
        # The first average connects and compiles; it is not counted.
        for index in range(averages + 1):
            started = time.perf_counter()
            if step is None:
                run_now(vector.average_with(partner))
            else:
                run_now(vector.begin_average_with(partner))
            seconds.append(time.perf_counter() - started)
            if step is not None:
                time.sleep(step)
                if index == 0:
                    run_now(vector.drain())
                    vector._background.blocked_seconds = 0.0
        run_now(vector.drain())
        run_now(transport.barrier())
        total = sum_over_ranks(transport, read(vector))
    return {
        "median": sorted(seconds[1:])[averages // 2],
        "sum": float(total[0]),
        **asdict(vector.counts),
    }
