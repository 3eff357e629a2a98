"""What ranks do with shared vectors, for test_averages.py."""

from __future__ import annotations

import ctypes
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from training.transports import locked_averaging
from training.transports.basics import Vector, run_now
from training.transports.loading import load_mpi
from training.transports.mpi import MpiTransport
from training.transports.mpi_shared_vector import MpiSharedVector


def random_partner(rng: np.random.Generator, transport: MpiTransport) -> int:
    """Any other rank."""
    chosen = int(rng.integers(transport.world_size - 1))
    return chosen + (chosen >= transport.rank)


def summed(transport: MpiTransport, vector: Vector) -> Vector:
    """The sum over all ranks."""
    total = vector.copy()
    run_now(transport.all_reduce_sum(total))
    return total


def conserve(protocol: Any, overlap: Any, averages: int, size: int = 33, dtype: str = "int64") -> dict[str, Any]:
    """All ranks average and add at once; is anything of the sum lost?"""
    transport = MpiTransport(protocol=protocol, overlap=overlap)
    rng = np.random.default_rng([transport.rank, 1])
    start = rng.integers(-(10**6), 10**6, size).astype(dtype)
    added, found = np.zeros(size, dtype), np.empty(size, dtype)
    vector = run_now(transport.share(start))
    versions = [run_now(vector.read(found))]
    while vector.counts.begun < averages:
        vector.begin_average_with(random_partner(rng, transport))
        if vector.counts.begun % 3 == 0:
            change = rng.integers(-1000, 1000, size).astype(dtype)
            added += change
            versions.append(run_now(vector.add(change)))
        else:
            versions.append(run_now(vector.read(found)))
    run_now(vector.drain())
    run_now(transport.barrier())
    versions.append(run_now(vector.read(found)))
    counts = vector.counts
    result = {
        "difference": np.unique(summed(transport, found) - summed(transport, start + added)).tolist(),
        "counts": counts._asdict(),
        "last_version": versions[-1],
        "versions_grow": versions == sorted(versions),
        "distance": float(np.abs(found - summed(transport, found) / transport.world_size).max()),
    }
    run_now(vector.close())
    transport.close()
    return result


def stamps(protocol: Any, averages: int, size: int) -> dict[str, Any]:
    """All elements of a vector stay the same number, unless a change is seen half done.

    The first half of the ranks only read, again and again, until the others have averaged with them. These average
    until every reader has read some times.
    """
    transport = MpiTransport(protocol=protocol, overlap="inline")
    rng = np.random.default_rng([transport.rank, 2])
    vector = run_now(transport.share(np.full(size, 1000.0 * transport.rank)))
    num_readers = transport.world_size // 2
    found, change = np.empty(size), np.empty(size)
    torn = unnoticed = reads = number = 0
    is_reader = transport.rank < num_readers
    readers_have_read = None if is_reader else transport.comm.Ibarrier()
    writers_are_done = None
    while writers_are_done is None or not writers_are_done.Test():
        if is_reader:
            noticed = vector.counts.mixed_reads
            run_now(vector.read(found))
            reads += 1
            if found.min() != found.max():
                torn += 1
                unnoticed += vector.counts.mixed_reads == noticed
            if reads == 25:
                readers_have_read, writers_are_done = transport.comm.Ibarrier(), transport.comm.Ibarrier()
        elif writers_are_done is None:
            change.fill(rng.integers(10))
            run_now(vector.add(change))
            run_now(vector.average_with(number % num_readers))
            number += 1
            if number >= averages and readers_have_read.Test():
                writers_are_done = transport.comm.Ibarrier()
    readers_have_read.Wait()
    result = {"torn": torn, "unnoticed": unnoticed, "reads": reads, **vector.counts._asdict()}
    run_now(vector.close())
    transport.close()
    return result


def read_others(protocol: Any, duration: float, size: int) -> dict[str, Any]:
    """The first rank reads the vectors of the others, which add to them meanwhile, until it has seen each grow."""
    transport = MpiTransport(protocol=protocol, overlap="inline")
    vector = run_now(transport.share(np.full(size, transport.rank, np.float32)))
    found, one = np.empty(size, np.float32), np.ones(size, np.float32)
    torn = 0
    last = {rank: float(rank) for rank in range(1, transport.world_size)}
    run_now(transport.barrier())
    started = time.monotonic()
    grows = True
    has_read = transport.comm.Ibarrier() if transport.rank else None
    while has_read is None or not has_read.Test():
        if transport.rank:
            run_now(vector.add(one))
            continue
        seconds = time.monotonic() - started
        if (seconds > duration and all(seen > rank + 10 for rank, seen in last.items())) or seconds > 20:
            has_read = transport.comm.Ibarrier()
            has_read.Wait()
            break
        for rank, before in last.items():
            run_now(vector.read_of(rank, found))
            torn += found.min() != found.max()
            grows = grows and before <= found[0]
            last[rank] = float(found[0])
    run_now(transport.barrier())
    run_now(vector.read_of(transport.rank, found))
    result = {"torn": int(torn), "grows": bool(grows), "last": last, "own": float(found[0])}
    run_now(transport.barrier())
    run_now(vector.close())
    transport.close()
    return result


def exclude(nap: float, averages: int) -> list[tuple[float, float, list[int]]]:
    """Averages that take long: when they held the vectors of which ranks."""
    transport = MpiTransport(protocol="locked", overlap="thread")
    rng = np.random.default_rng([transport.rank, 3])
    held: list[tuple[float, float, list[int]]] = []
    take_average = locked_averaging.LockedAveraging._take_average
    partner = -1

    def slowly(averaging: locked_averaging.LockedAveraging) -> None:
        started = time.monotonic()
        time.sleep(nap)
        take_average(averaging)
        held.append((started, time.monotonic(), [transport.rank, partner]))

    locked_averaging.LockedAveraging._take_average = slowly
    vector = run_now(transport.share(np.zeros(5)))
    for _ in range(averages):
        partner = random_partner(rng, transport)
        vector.begin_average_with(partner)
        run_now(vector.drain())
    run_now(vector.close())
    transport.close()
    locked_averaging.LockedAveraging._take_average = take_average
    return held


def straggle(protocol: Any, overlap: Any, folder: str, nap: float, averages: int) -> dict[str, float]:
    """The last rank sleeps until the others, which average with all, have said in a folder that they are done.

    Who is not done before the nap ends, was kept waiting. Returns when who was done.
    """
    transport = MpiTransport(protocol=protocol, overlap=overlap)
    rng = np.random.default_rng([transport.rank, 4])
    vector = run_now(transport.share(np.full(2013, float(transport.rank), np.float32)))
    run_now(transport.barrier())
    signs = Path(folder)
    if transport.rank == transport.world_size - 1:
        end = time.monotonic() + nap
        while len(list(signs.iterdir())) < transport.rank and time.monotonic() < end:
            time.sleep(0.01)
    else:
        while vector.counts.begun < averages:
            vector.begin_average_with(random_partner(rng, transport))
            run_now(vector.drain())
    done = time.monotonic()
    if transport.rank < transport.world_size - 1:
        (signs / f"{transport.rank}").touch()
    run_now(vector.close())
    transport.close()
    return {"done": done, **vector.counts._asdict()}


def finish_early(protocol: Any, overlap: Any, averages: int) -> dict[str, Any]:
    """Rank 0 ends at once and frees its vector; the others continue to average with it."""
    transport = MpiTransport(protocol=protocol, overlap=overlap)
    vector = run_now(transport.share(np.arange(100.0) * transport.rank))
    if transport.rank:
        time.sleep(0.2)
        for _ in range(averages):
            run_now(vector.average_with(0))
    run_now(vector.close())
    transport.close()
    return vector.counts._asdict()


def fail_in_thread(where: str) -> dict[str, Any]:
    """An average that the thread makes fails; the next call says so, and the one after that works again."""
    transport = MpiTransport(overlap="thread")
    vector = run_now(transport.share(np.zeros(3)))
    average = vector._averaging.average

    def fail(partner: int) -> None:
        vector._averaging.average = average  # type: ignore[method-assign]
        raise RuntimeError(f"no average with {partner}")

    vector._averaging.average = fail  # type: ignore[method-assign]
    partner = 1 - transport.rank
    vector.begin_average_with(partner)
    with vector._beside._under_way:
        pass
    words = ""
    try:
        call(vector, where, partner)
    except RuntimeError as error:
        words = str(error)
    if where != "close":
        run_now(vector.average_with(partner))
        run_now(vector.close())
    transport.close()
    return {"words": words, "begun": vector.counts.begun}


def call(vector: MpiSharedVector, where: str, partner: int) -> None:
    """One of the calls of a vector."""
    if where == "begin":
        vector.begin_average_with(partner)
    elif where == "average":
        run_now(vector.average_with(partner))
    elif where == "drain":
        run_now(vector.drain())
    elif where == "close":
        run_now(vector.close())
    else:
        run_now({"read": vector.read, "add": vector.add}[where](np.zeros(3)))


def skip(protocol: Any) -> dict[str, Any]:
    """A second average is begun while the first one is still under way."""
    transport = MpiTransport(protocol=protocol, overlap="thread")
    if protocol == "sockets":
        return skip_beside_sockets(transport)
    vector = run_now(transport.share(np.zeros(3)))
    average, are_begun = vector._averaging.average, threading.Event()

    def slowly(partner: int) -> bool:
        are_begun.wait(20)
        time.sleep(0.3)
        return average(partner)

    vector._averaging.average = slowly  # type: ignore[method-assign]
    after, before = neighbours_of(transport)
    for partner in (after, before, after):
        vector.begin_average_with(partner)
    are_begun.set()
    run_now(vector.drain())
    vector.begin_average_with(after)
    run_now(vector.close())
    transport.close()
    return vector.counts._asdict()


def skip_beside_sockets(transport: MpiTransport) -> dict[str, Any]:
    """The same, while the partner's thread waits for the lock of its vector."""
    vector = run_now(transport.share(np.zeros(3)))
    served, library = vector, ctypes.CDLL(None)
    own = served._mutex
    run_now(transport.barrier())
    library.pthread_mutex_lock(ctypes.c_void_p(own.ctypes.data))
    # The owner takes this lock too; here it does without.
    served._mutex = np.zeros_like(own)
    run_now(transport.barrier())
    after, before = neighbours_of(transport)
    for partner in (after, before, after):
        vector.begin_average_with(partner)
    run_now(transport.barrier())
    library.pthread_mutex_unlock(ctypes.c_void_p(own.ctypes.data))
    served._mutex = own
    run_now(vector.drain())
    vector.begin_average_with(after)
    run_now(vector.close())
    transport.close()
    return vector.counts._asdict()


def neighbours_of(transport: MpiTransport) -> tuple[int, int]:
    """The ranks after and before this one."""
    return (transport.rank + 1) % transport.world_size, (transport.rank - 1) % transport.world_size


def poison(overlap: Any) -> dict[str, Any]:
    """The vector of rank 0 is not finite, and everybody averages with everybody."""
    transport = MpiTransport(protocol="sockets", overlap=overlap)
    start = np.full(1000, float(transport.rank + 1), np.float32)
    if transport.rank == 0:
        start[500] = np.nan
    vector = run_now(transport.share(start))
    rng = np.random.default_rng([transport.rank, 5])
    for _ in range(50):
        vector.begin_average_with(random_partner(rng, transport))
        run_now(vector.drain())
    run_now(transport.barrier())
    found = np.empty_like(start)
    run_now(vector.read(found))
    run_now(vector.close())
    transport.close()
    return {"finite": bool(np.isfinite(found).all()), **vector.counts._asdict()}


class Stopwatch:
    """In the place of the timer that ends a job whose block takes too long: when blocks began and ended."""

    def __init__(self, spans: list[tuple[float, float]], *_: object) -> None:
        self.daemon = True
        self._spans = spans
        self._started = 0.0

    def start(self) -> None:
        """The block begins."""
        self._started = time.monotonic()

    def cancel(self) -> None:
        """It ends."""
        self._spans.append((self._started, time.monotonic()))


def come_late(protocol: Any, nap: float) -> dict[str, Any]:
    """Rank 1 comes to the connection and to the vector a nap after rank 0; what rank 0 did under a time limit then."""
    world, spans, came = load_mpi().COMM_WORLD, [], []

    def come() -> None:
        if world.rank:
            world.Recv(np.empty(1), 0)
            time.sleep(nap)
        came.append(time.monotonic())
        if not world.rank:
            world.Send(np.zeros(1), 1)

    timer, threading.Timer = threading.Timer, partial(Stopwatch, spans)  # type: ignore[assignment, misc]
    come()
    transport = MpiTransport(protocol=protocol, overlap="inline")
    come()
    vector = run_now(transport.share(np.full(3, float(transport.rank))))
    threading.Timer = timer  # type: ignore[misc]
    run_now(vector.average_with((transport.rank + 1) % transport.world_size))
    total = np.empty(3)
    run_now(transport.barrier())
    run_now(vector.read(total))
    run_now(transport.all_reduce_sum(total))
    run_now(vector.close())
    transport.close()
    return {"total": float(total[0]), "came": came, "spans": spans}


def between_hosts(step: float, averages: int) -> dict[str, Any]:
    """Averages that the owner waits for, and averages beside the computation; how long they took."""
    found: dict[str, Any] = {}
    for overlap in ("inline", "thread"):
        transport = MpiTransport(overlap=overlap)
        start = np.full(2013, float(transport.rank), np.float32)
        vector = run_now(transport.share(start))
        run_now(transport.barrier())
        # One average more, which connects and compiles.
        seconds = []
        for _ in range(averages + 1):
            before = time.perf_counter()
            vector.begin_average_with((transport.rank + 1) % transport.world_size)
            seconds.append(time.perf_counter() - before)
            if overlap == "thread":
                time.sleep(step)
                if len(seconds) == 1:
                    # What it takes to connect and to compile is no time that an average costs.
                    run_now(vector.drain())
                    vector._blocked_seconds = 0.0
        run_now(vector.drain())
        run_now(transport.barrier())
        run_now(vector.read(start))
        total = float(summed(transport, start)[0])
        counts = vector.counts
        found[overlap] = {"median": sorted(seconds[1:])[averages // 2], "sum": total, **counts._asdict()}
        found["protocol"] = transport.protocol
        run_now(vector.close())
        transport.close()
    return found


def refuse(what: str) -> str:
    """What cannot be meant."""
    transport = MpiTransport(overlap="inline")
    odd = {"size": np.zeros(2 + transport.rank), "type": np.zeros(2, np.float32 if transport.rank else np.float64)}
    words = ""
    try:
        vector = run_now(transport.share(odd.get(what, np.zeros(2, np.complex64 if what == "complex" else np.float32))))
        vector.begin_average_with(transport.rank if what == "self" else transport.world_size)
    except AssertionError as error:
        words = str(error)
    return words
