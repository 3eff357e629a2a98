"""What ranks do with a server, and with sums in the background, for test_transports.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.transports.parameter_server import ParameterServer, Shard, ShardSelection


def pulled(server: ParameterServer, size: int) -> list[float]:
    """The vector."""
    out = np.empty(size)
    run_now(server.pull(out))
    values: list[float] = out.tolist()
    return values


@contextmanager
def served(
    document: Vector, shards: int = 1, **options: bool
) -> Iterator[tuple[MpiTransport, ParameterServer]]:
    """A transport and a server, until the end of the block."""
    transport = MpiTransport(**options)
    server = run_now(transport.parameter_server(document, shards=shards))
    yield transport, server
    run_now(server.close())
    transport.close()


def conserve(
    in_memory: bool, background: bool, pushes: int, size: int, shards: int
) -> dict[str, Any]:
    """All ranks add at once, to all or single shards or some elements; is anything of the sum lost?"""
    transport = MpiTransport(shares_memory=in_memory, background=background)
    rng = np.random.default_rng([transport.rank, 5])
    document = np.array([np.arange(float(size)), np.zeros(size)])
    server = run_now(transport.parameter_server(document, shards=shards))
    # What is added to the vector, and how often to each element.
    added, expected = np.zeros((2, size)), np.zeros(shards, np.int64)
    for index in range(pushes):
        change = rng.integers(-1000, 1000, size).astype(np.float64)
        indices = (
            np.flatnonzero(rng.random(size) < 0.3).astype(np.int32) if index % 3 == 2 else None
        )
        if indices is not None:
            change = change[indices]
        shard = int(rng.integers(shards)) if index % 3 == 1 else None

        def add(seen: Shard, change: Vector = change) -> None:
            seen.vector += change[seen.elements]
            seen.moments += 1

        run_now(server.drain())
        server.begin_push(add, ShardSelection(shard, indices))
        chunk = (
            slice(None)
            if shard is None
            else slice(size * shard // shards, size * (shard + 1) // shards)
        )
        if indices is not None:
            added[:, indices] += [change, np.ones(len(change))]
        else:
            added[:, chunk] += [change[chunk], np.ones(len(change[chunk]))]
        expected[slice(None) if shard is None else shard] += 1
        if index % 5 == 0:
            pulled(server, size)
    run_now(server.drain())
    run_now(transport.barrier())
    out = np.empty((2, size))
    clocks = run_now(server.pull(out))
    for each in (added, expected):
        run_now(transport.all_reduce_sum(each))
    result = {
        "lost": float(np.abs(out - document - added).max()),
        "clocks_are_right": clocks.tolist() == expected.tolist(),
        "counts": asdict(server.counts),
    }
    run_now(server.close())
    transport.close()
    return result


def order(pushes: int, size: int, shards: int) -> dict[str, Any]:
    """Rules that do not commute: x <- (3 x + c) mod 1009; returns what was added at each clock of each shard."""
    with served(np.zeros(size), shards) as (transport, server):
        created: list[tuple[int, int, int]] = []
        for number in range(pushes):
            value = pushes * transport.rank + number

            def rule(shard: Shard, value: int = value) -> None:
                created.append((shard.index, shard.clock, value))
                shard.vector[...] = (3 * shard.vector + value) % 1009

            run_now(server.push(rule))
        run_now(transport.barrier())
        result: dict[str, Any] = {"made": created, "final": pulled(server, size)}
    return result


def occupied(in_memory: bool, nap: float) -> dict[str, Any]:
    """Rank 0 holds shard 1 until the other has tried: it is occupied, shard 0 is not; then a result is not finite."""
    with served(np.zeros(5), 2, shares_memory=in_memory, background=True) as (transport, server):

        def hold(shard: Shard) -> None:
            shard.vector += 1
            if shard.index == 1:
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
            server.begin_push(hold, ShardSelection(1))
            time.sleep(nap)
            run_now(server.drain())
        else:
            transport.comm.Barrier()
            tried = [
                run_now(server.try_push(add, ShardSelection(shard))) is not None for shard in (1, 0)
            ]
            tried.append(run_now(server.try_push(add)) is not None)
            transport.comm.Ibarrier().Wait()
        run_now(transport.barrier())
        tried.append(run_now(server.try_push(add, ShardSelection(1))) is not None)
        refused = not run_now(server.push(spoil)).is_accepted
        tickets = [run_now(transport.count("tickets", 1)) for _ in range(10)]
        run_now(transport.barrier())
        return {
            "tried": tried,
            "refused": refused,
            "tickets": tickets,
            "final": pulled(server, 5),
            "counts": asdict(server.counts),
        }


def between_hosts(pushes: int) -> dict[str, Any]:
    """How long a push to the other host takes, and whether nothing is lost."""
    with served(np.zeros(100), 2) as (transport, server):

        def add(shard: Shard) -> None:
            shard.vector += 1

        times = []
        for _ in range(pushes):
            started = time.perf_counter()
            run_now(server.push(add, ShardSelection(1 - transport.rank)))
            times.append(time.perf_counter() - started)
        run_now(transport.barrier())
        return {
            "median": float(np.median(times)),
            "final": sorted(set(pulled(server, 100))),
            "bytes": server.counts.bytes,
        }


def sums(background: bool, size: int) -> dict[str, Any]:
    """Two sums are under way at once while ranks compute; another all-reduce and a server work meanwhile."""
    with served(np.zeros(3), background=background) as (transport, server):
        first, second = np.full(size, 1.0 + transport.rank), np.full(3, 10.0 * transport.rank)

        def add(shard: Shard) -> None:
            shard.vector += 1

        pending = [transport.begin_all_reduce(each) for each in (first, second)]
        run_now(server.push(add))
        between = np.ones(2)
        run_now(transport.all_reduce_sum(between))
        deadline = time.perf_counter() + 20
        # The thread alone brings them to their end: nothing here enters MPI for a sum.
        while (
            background
            and not all(each._has_ended for each in pending)  # type: ignore[attr-defined]
            and time.perf_counter() < deadline
        ):
            time.sleep(1e-3)
        ended_in_background = all(each._has_ended for each in pending)  # type: ignore[attr-defined]

        async def wait() -> None:
            for each in pending:
                await each

        run_now(wait())
        return {
            "first": sorted(set(first.tolist())),
            "second": second.tolist(),
            "between": between.tolist(),
            "ended_in_background": ended_in_background,
        }
