"""What ranks do with shared vectors, for test_averages.py."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from training.transports import locked_averaging
from training.transports.mpi import MpiTransport
from training.transports.mpi_shared_vector import MpiSharedVector
from training.transports.transport import Vector, run_now


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
        "difference": (summed(transport, found) - summed(transport, start + added)).tolist(),
        "counts": counts._asdict(),
        "last_version": versions[-1],
        "versions_grow": versions == sorted(versions),
        "distance": float(np.abs(found - summed(transport, found) / transport.world_size).max()),
    }
    run_now(vector.close())
    transport.close()
    return result


def stamps(protocol: Any, averages: int, size: int) -> dict[str, Any]:
    """All elements of a vector stay the same number, unless a change is seen half done."""
    transport = MpiTransport(protocol=protocol, overlap="thread")
    rng = np.random.default_rng([transport.rank, 2])
    vector = run_now(transport.share(np.full(size, 1000.0 * transport.rank)))
    found, torn, unnoticed = np.empty(size), 0, 0
    change = np.empty(size)
    while vector.counts.begun < averages:
        vector.begin_average_with(random_partner(rng, transport))
        change.fill(rng.integers(10))
        run_now(vector.add(change))
        # The thread must not read meanwhile, or it counts too.
        run_now(vector.drain())
        noticed = vector.counts.mixed_reads
        run_now(vector.read(found))
        if found.min() != found.max():
            torn += 1
            unnoticed += vector.counts.mixed_reads == noticed
    run_now(transport.barrier())
    run_now(vector.close())
    transport.close()
    return {"torn": torn, "unnoticed": unnoticed, "mixed_reads": vector.counts.mixed_reads}


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
    return held


def straggle(protocol: Any, overlap: Any, nap: float, averages: int) -> dict[str, float]:
    """The last rank sleeps, the others average with all; when who was done."""
    transport = MpiTransport(protocol=protocol, overlap=overlap)
    rng = np.random.default_rng([transport.rank, 4])
    vector = run_now(transport.share(np.full(2013, float(transport.rank), np.float32)))
    run_now(transport.barrier())
    if transport.rank == transport.world_size - 1:
        time.sleep(nap)
    else:
        while vector.counts.begun < averages:
            vector.begin_average_with(random_partner(rng, transport))
            run_now(vector.drain())
    done = time.monotonic()
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
    with vector._under_way:
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


def skip() -> dict[str, Any]:
    """A second average is begun while the first one is still under way."""
    transport = MpiTransport(overlap="thread")
    vector = run_now(transport.share(np.zeros(3)))
    average = vector._averaging.average

    def slowly(partner: int) -> None:
        time.sleep(0.3)
        average(partner)

    vector._averaging.average = slowly  # type: ignore[method-assign]
    partner = 1 - transport.rank
    vector.begin_average_with(partner)
    vector.begin_average_with(partner)
    vector.begin_average_with(partner)
    run_now(vector.drain())
    vector.begin_average_with(partner)
    run_now(vector.close())
    transport.close()
    return vector.counts._asdict()


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
