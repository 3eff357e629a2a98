"""What ranks do with a centre, and with sums beside the computation, for test_centres.py."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from training.transports.basics import Vector, run_now
from training.transports.centre import Centre, Where
from training.transports.mpi import MpiTransport
from training.transports.shards import Shard
from training.transports.transport import Transport


def pulled(centre: Centre, size: int) -> list[float]:
    """The vector."""
    out = np.empty(size)
    run_now(centre.pull(out))
    values: list[float] = out.tolist()
    return values


def conserve(in_memory: bool, background: bool, commits: int, size: int, shards: int) -> dict[str, Any]:
    """All ranks add at once, to all or single shards or some elements; is anything of the sum lost?"""
    transport = MpiTransport(shares_memory=in_memory, background=background)
    rng = np.random.default_rng([transport.rank, 5])
    centre = run_now(transport.centre(np.arange(float(size)), shards=shards, segments={"count": 0.0}))
    added, wanted = np.zeros(size), np.zeros(shards, np.int64)
    for number in range(commits):
        change = rng.integers(-1000, 1000, size).astype(np.float64)
        indices = np.flatnonzero(rng.random(size) < 0.3).astype(np.int32) if number % 3 == 2 else None
        if indices is not None:
            change = change[indices]
        shard = int(rng.integers(shards)) if number % 3 == 1 else None

        def add(seen: Shard, change: Vector = change) -> None:
            seen.vector += change[seen.part]
            seen.segments["count"] += 1

        run_now(centre.drain())
        centre.begin_commit(add, Where(shard, indices))
        part = slice(None) if shard is None else slice(size * shard // shards, size * (shard + 1) // shards)
        if indices is not None:
            added[indices] += change
        else:
            added[part] += change[part]
        wanted[slice(None) if shard is None else shard] += 1
        if number % 5 == 0:
            pulled(centre, size)
    run_now(centre.drain())
    run_now(transport.barrier())
    out = np.empty(size)
    clocks = run_now(centre.pull(out))
    for each in (added, wanted):
        run_now(transport.all_reduce_sum(each))
    result = {
        "lost": float(np.abs(out - np.arange(float(size)) - added).max()),
        "clocks_are_right": clocks.tolist() == wanted.tolist(),
        "counts": centre.counts._asdict(),
    }
    run_now(centre.close())
    transport.close()
    return result


async def turns(transport: Transport) -> list[float]:
    """Ranks commit in turn, dense and sparse, with momentum at the centre; returns the vector."""
    size = 11
    centre = await transport.centre(np.linspace(0, 1, size), shards=3, segments={"momentum": 0.0})
    for number in range(3 * transport.world_size):
        indices = np.arange(0, size, 1 + number % 2)
        change = np.sin(number + indices)

        def rule(shard: Shard, change: Vector = change) -> None:
            momentum = shard.segments["momentum"]
            momentum *= 0.9
            momentum += change[shard.part]
            shard.vector += momentum

        if number % transport.world_size == transport.rank:
            await centre.commit(rule, Where(indices=indices if number % 2 else None))
        await transport.barrier()
    out = np.empty(size)
    await centre.pull(out)
    await centre.close()
    values: list[float] = out.tolist()
    return values


def order(commits: int, size: int, shards: int) -> dict[str, Any]:
    """Rules that do not commute: x <- (3 x + c) mod 1009; returns what was added at each clock of each shard."""
    transport = MpiTransport()
    centre = run_now(transport.centre(np.zeros(size), shards=shards))
    made: list[tuple[int, int, int]] = []
    for number in range(commits):
        value = commits * transport.rank + number

        def rule(shard: Shard, value: int = value) -> None:
            made.append((shard.number, shard.clock, value))
            shard.vector[...] = (3 * shard.vector + value) % 1009

        run_now(centre.commit(rule))
    run_now(transport.barrier())
    result: dict[str, Any] = {"made": made, "final": pulled(centre, size)}
    run_now(centre.close())
    result["turns"] = run_now(turns(transport))
    transport.close()
    return result


def occupied(in_memory: bool, nap: float) -> dict[str, Any]:
    """Rank 0 holds shard 1 until the other has tried: it is occupied, shard 0 is not; then a result is not finite."""
    transport = MpiTransport(shares_memory=in_memory, background=True)
    centre = run_now(transport.centre(np.zeros(5), shards=2))

    def hold(shard: Shard) -> None:
        shard.vector += 1
        if shard.number == 1:
            transport.comm.Barrier()
            time.sleep(nap)
            has_tried, deadline = transport.comm.Ibarrier(), time.monotonic() + 20
            while not has_tried.Test() and time.monotonic() < deadline:
                time.sleep(1e-3)

    def add(shard: Shard) -> None:
        shard.vector += 10

    def spoil(shard: Shard) -> None:
        shard.vector[-1] = np.nan

    tried: list[bool] = []
    if transport.rank == 0:
        centre.begin_commit(hold, Where(1))
        time.sleep(nap)
        run_now(centre.drain())
    else:
        transport.comm.Barrier()
        tried = [run_now(centre.try_commit(add, Where(shard))) is not None for shard in (1, 0)]
        tried.append(run_now(centre.try_commit(add)) is not None)
        transport.comm.Ibarrier().Wait()
    run_now(transport.barrier())
    tried.append(run_now(centre.try_commit(add, Where(1))) is not None)
    refused = not run_now(centre.commit(spoil)).is_made
    run_now(transport.barrier())
    result = {"tried": tried, "refused": refused, "final": pulled(centre, 5), "counts": centre.counts._asdict()}
    run_now(centre.close())
    transport.close()
    return result


def between_hosts(commits: int) -> dict[str, Any]:
    """How long a commit to the other host takes, and whether nothing is lost."""
    transport = MpiTransport()
    centre = run_now(transport.centre(np.zeros(100), shards=2))

    def add(shard: Shard) -> None:
        shard.vector += 1

    times = []
    for _ in range(commits):
        started = time.perf_counter()
        run_now(centre.commit(add, Where(1 - transport.rank)))
        times.append(time.perf_counter() - started)
    run_now(transport.barrier())
    result = {
        "median": float(np.median(times)),
        "final": sorted(set(pulled(centre, 100))),
        "bytes": centre.counts.bytes,
    }
    run_now(centre.close())
    transport.close()
    return result


def sums(background: bool, size: int) -> dict[str, Any]:
    """Two sums are under way at once while ranks compute; another all-reduce and a centre work meanwhile."""
    transport = MpiTransport(background=background)
    centre = run_now(transport.centre(np.zeros(3)))
    first, second = np.full(size, 1.0 + transport.rank), np.full(3, 10.0 * transport.rank)

    def add(shard: Shard) -> None:
        shard.vector += 1

    pending = [transport.begin_all_reduce(each) for each in (first, second)]
    run_now(centre.commit(add))
    between = np.ones(2)
    run_now(transport.all_reduce_sum(between))
    deadline = time.perf_counter() + 20
    # The thread alone brings them to their end: nothing here enters MPI for a sum.
    while background and not all(each._has_ended for each in pending) and time.perf_counter() < deadline:  # type: ignore[attr-defined]
        time.sleep(1e-3)
    ended_beside = all(each._has_ended for each in pending)  # type: ignore[attr-defined]

    async def wait() -> None:
        for each in pending:
            await each

    run_now(wait())
    result = {
        "first": sorted(set(first.tolist())),
        "second": second.tolist(),
        "between": between.tolist(),
        "ended_beside": ended_beside,
    }
    run_now(centre.close())
    transport.close()
    return result
