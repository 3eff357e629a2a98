"""Programs of ranks with a server, and with sums in the background, for test_transports.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import ALL_SHARDS, Shard, ShardSelection


def pulled(server: ParameterServer, size: int) -> list[float]:
    """The vector."""
    out = np.empty(size)
    run_now(server.pull(out))
    vector: list[float] = out.tolist()
    return vector


@contextmanager
def served(
    start: Vector, shards: int = 1, **options: bool
) -> Iterator[tuple[MpiTransport, ParameterServer]]:
    """A transport and a server, until the end of the block."""
    transport = MpiTransport(**options)
    server = run_now(transport.parameter_server(start, shards=shards))
    yield transport, server
    run_now(server.close())
    transport.close()


def conserve(
    in_memory: bool, background: bool, pushes: int, size: int, shards: int
) -> dict[str, Any]:
    """All ranks add at once: to all shards, to one shard, or to some elements.

    Returns what is lost of the sum.
    """
    start = np.array([np.arange(float(size)), np.zeros(size)])
    expected = np.zeros_like(start)
    expected_clocks = np.zeros(shards, np.int64)
    with served(start, shards, shares_memory=in_memory, background=background) as (
        transport,
        server,
    ):
        rng = np.random.default_rng([transport.rank, 5])
        for push in range(pushes):
            run_now(server.drain())
            selection = _random_selection(push, rng, size, shards)
            _begin_to_add(server, selection, rng, expected, expected_clocks)
            if push % 5 == 0:
                pulled(server, size)
        run_now(server.drain())
        run_now(transport.barrier())
        out = np.empty((2, size))
        clocks = run_now(server.pull(out))
        run_now(transport.all_reduce_sum(expected))
        run_now(transport.all_reduce_sum(expected_clocks))
        return {
            "lost": float(np.abs(out - start - expected).max()),
            "clocks_are_right": clocks.tolist() == expected_clocks.tolist(),
            "counts": asdict(server.counts),
        }


def _random_selection(
    push: int, rng: np.random.Generator, size: int, shards: int
) -> ShardSelection:
    """All shards, one shard, or some elements, in turn."""
    if push % 3 == 1:
        return ShardSelection(shard=int(rng.integers(shards)))
    if push % 3 == 2:
        indices = np.flatnonzero(rng.random(size) < 0.3)
        return ShardSelection(indices=indices.astype(np.int32))
    return ShardSelection()


def _begin_to_add(
    server: ParameterServer,
    selection: ShardSelection,
    rng: np.random.Generator,
    expected: Vector,
    expected_clocks: Vector,
) -> None:
    """Push random numbers, and add them to the expected sums.

    The second row counts the pushes to each element.
    """
    change = rng.integers(-1000, 1000, expected.shape[1]).astype(np.float64)
    elements: Any = slice(None)
    if selection.indices is not None:
        elements = selection.indices
        change = change[elements]
        expected[0, elements] += change
    else:
        if selection.shard is not None:
            elements = server.layout.slices[selection.shard]
        expected[0, elements] += change[elements]
    expected[1, elements] += 1
    expected_clocks[slice(None) if selection.shard is None else selection.shard] += 1

    def add(shard: Shard) -> None:
        shard.vector += change[shard.elements]
        shard.moments += 1

    server.begin_push(add, selection)


def order(pushes: int, size: int, shards: int) -> dict[str, Any]:
    """Rules that do not commute: x <- (3 x + c) mod 1009.

    Returns the c at each clock of each shard.
    """
    with served(np.zeros(size), shards) as (transport, server):
        terms: list[tuple[int, int, int]] = []
        for push in range(pushes):

            def rule(shard: Shard, term: int = pushes * transport.rank + push) -> None:
                terms.append((shard.index, shard.clock, term))
                shard.vector[...] = (3 * shard.vector + term) % 1009

            run_now(server.push(rule))
        run_now(transport.barrier())
        return {"terms": terms, "final": pulled(server, size)}


def occupied(in_memory: bool, nap: float) -> dict[str, Any]:
    """Rank 0 holds shard 1 until the other has tried: it is occupied, shard 0 is not.

    Then a result is not finite.
    """
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

        def is_tried(selection: ShardSelection) -> bool:
            return run_now(server.try_push(add, selection)) is not None

        tries: list[bool] = []
        if transport.rank == 0:
            server.begin_push(hold, ShardSelection(1))
            time.sleep(nap)
            run_now(server.drain())
        else:
            transport.comm.Barrier()
            tries += [
                is_tried(ShardSelection(1)),
                is_tried(ShardSelection(0)),
                is_tried(ALL_SHARDS),
            ]
            transport.comm.Ibarrier().Wait()
        run_now(transport.barrier())
        tries.append(is_tried(ShardSelection(1)))
        is_refused = not run_now(server.push(spoil)).is_accepted
        tickets = [run_now(transport.count("tickets", 1)) for _ in range(10)]
        run_now(transport.barrier())
        return {
            "tries": tries,
            "is_refused": is_refused,
            "tickets": tickets,
            "final": pulled(server, 5),
            "counts": asdict(server.counts),
        }


def push_elements(size: int, stride: int) -> dict[str, int]:
    """Rank 1 pushes some elements to the shard of rank 0; the bytes that it counts, and those of
    the bodies of its messages."""
    with served(np.zeros(size, np.float32), 1, shares_memory=False) as (transport, server):
        memory = server._memory  # type: ignore[attr-defined]
        ask, body_bytes = memory._ask, [0]

        def ask_and_add_up(rank: int, *, has_answer: bool = True) -> int:
            body_bytes[0] += int(memory._header[0]["body_bytes"])
            state: int = ask(rank, has_answer=has_answer)
            if has_answer:
                body_bytes[0] += int(memory._header[0]["body_bytes"])
            return state

        memory._ask = ask_and_add_up
        run_now(transport.barrier())
        if transport.rank == 1:
            # Indices of any type travel in the same one.
            for dtype in (np.int32, np.int64):
                indices = np.arange(0, size, stride, dtype=dtype)
                run_now(server.push(lambda _: None, ShardSelection(indices=indices)))
        run_now(transport.barrier())
        return {"counted": server.counts.bytes, "sent": body_bytes[0]}


def between_hosts(pushes: int) -> dict[str, Any]:
    """How long a push to the other host takes, and whether nothing is lost."""
    with served(np.zeros(100), 2) as (transport, server):

        def add(shard: Shard) -> None:
            shard.vector += 1

        seconds = []
        for _ in range(pushes):
            started = time.perf_counter()
            run_now(server.push(add, ShardSelection(1 - transport.rank)))
            seconds.append(time.perf_counter() - started)
        run_now(transport.barrier())
        return {
            "median": float(np.median(seconds)),
            "final": sorted(set(pulled(server, 100))),
            "bytes": server.counts.bytes,
        }


def sums(background: bool, size: int) -> dict[str, Any]:
    """Two sums are under way at once while ranks compute.

    Another all-reduce and a server work meanwhile.
    """
    with served(np.zeros(3), background=background) as (transport, server):
        first, second = np.full(size, 1.0 + transport.rank), np.full(3, 10.0 * transport.rank)

        def add(shard: Shard) -> None:
            shard.vector += 1

        sums_under_way: list[Any] = [
            transport.begin_all_reduce(first),
            transport.begin_all_reduce(second),
        ]
        run_now(server.push(add))
        between = np.ones(2)
        run_now(transport.all_reduce_sum(between))

        # The thread alone brings them to their end: nothing here enters MPI for a sum.
        def have_ended() -> bool:
            return all(pending._has_ended for pending in sums_under_way)

        deadline = time.perf_counter() + 20
        while background and not have_ended() and time.perf_counter() < deadline:
            time.sleep(1e-3)
        ended_in_background = have_ended()
        for pending in sums_under_way:
            run_now(pending.wait())
        return {
            "first": sorted(set(first.tolist())),
            "second": second.tolist(),
            "between": between.tolist(),
            "ended_in_background": ended_in_background,
        }
