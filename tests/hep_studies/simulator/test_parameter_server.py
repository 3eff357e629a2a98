"""The server on the virtual clock: times by hand, order, overlap; and sums in the background."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from simulated import constant_step_cluster

from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock
from training.loop.metering import Meter, MeteredTransport
from training.transports.basics import Vector
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import Shard, ShardSelection
from training.transports.transport import Transport

LATENCY, BANDWIDTH = 1e-3, 1e5
SIZE = 100
#: Time of a vector of SIZE numbers on a card, without the latency.
CARD = 8 * SIZE / BANDWIDTH
#: A round trip that carries the vector one way.
TRIP = 2 * LATENCY + CARD

Work = Callable[[Transport, ParameterServer], Coroutine[Any, Any, None]]


def on_workers(
    workers: int,
    work: Work,
    *,
    shards: int = 1,
    rows: int = 1,
    per_host: int = 1,
    seconds: float = 0.0,
    **more: object,
) -> float:
    """Run something on some workers with a server; the virtual time from its creation to the end."""
    cluster = constant_step_cluster(
        seconds,
        latency_seconds=LATENCY,
        bytes_per_second=BANDWIDTH,
        workers_per_host=per_host,
        memory_latency_seconds=0.0,
        memory_bytes_per_second=1e300,
        **more,
    )
    clock, begun = VirtualClock(), []

    async def run(transport: Transport) -> None:
        server = await transport.parameter_server(np.zeros((rows, SIZE)), shards=shards)
        begun.append(clock.now)
        await work(transport, server)

    for transport in SimNetwork(clock, cluster, workers).transports():
        clock.spawn(run(transport), f"worker {transport.rank}")
    clock.run()
    return clock.now - begun[0]


def sleep(transport: Transport, seconds: float) -> Coroutine[Any, Any, None]:
    """Compute for some time."""
    clock: VirtualClock = transport._network.clock  # type: ignore[attr-defined]
    return clock.sleep(seconds)


def add_one(shard: Shard) -> None:
    shard.vector += 1


def test_a_pull_a_push_and_a_sparse_push_take_their_time_and_bytes() -> None:
    seen: dict[str, tuple[float, int]] = {}

    async def work(transport: Transport, server: ParameterServer) -> None:
        if transport.rank == 0:
            await server.push(add_one)
            assert (transport.now() - begun[0], server.counts.bytes) == (0, 0)
            return
        await sleep(transport, 1.0)
        for name, does in {
            "pull": lambda: server.pull(np.empty(SIZE)),
            "push": lambda: server.push(add_one),
            "sparse": lambda: server.push(
                add_one, ShardSelection(indices=np.arange(10, dtype=np.int32))
            ),
            "probe": lambda: server.try_push(add_one),
        }.items():
            now, sent = transport.now(), server.counts.bytes
            await does()
            seen[name] = transport.now() - now, server.counts.bytes - sent

    #: The barrier of two workers is one round of messages.
    begun = [LATENCY]
    on_workers(2, work, rows=2)
    assert seen["push"] == (pytest.approx(2 * (2 * LATENCY + 2 * CARD)), 3200)
    on_workers(2, work)
    assert seen["pull"] == (pytest.approx(TRIP), 800)
    assert seen["push"] == (pytest.approx(2 * TRIP), 1600)
    assert seen["sparse"] == (pytest.approx(4 * LATENCY + (40 + 80 + 80) / BANDWIDTH), 200)
    assert seen["probe"] == (pytest.approx(2 * LATENCY + 2 * TRIP), 1600)


def test_a_push_keeps_the_processor_busy_under_the_lock_of_each_shard() -> None:
    """The rules of servers took no time, so the simulator promised batches that took up to 3.8 times as long."""
    seen: dict[int, float] = {}

    async def work(transport: Transport, server: ParameterServer) -> None:
        begun = transport.now()
        await server.pull(np.empty(SIZE))
        assert transport.now() == pytest.approx(begun)
        await transport.barrier()
        await server.push(add_one)
        seen[transport.rank] = transport.now() - begun

    # Both are on one host, whose messages take no time here; the straggler is three times as slow,
    # and comes second.
    on_workers(2, work, shards=2, per_host=2, push_seconds=0.1, slow_ranks={1: 3.0})
    # Worker 0: both shards. Worker 1 waits for shard 0, and its visit to shard 1 begins when that
    # to shard 0 ends.
    assert seen[0] == pytest.approx(2 * 0.1)
    assert seen[1] == pytest.approx(0.1 + 2 * 0.3)


def test_pushes_to_one_shard_follow_each_other_in_the_order_of_asking_and_shards_are_independent() -> (
    None
):
    ended: list[tuple[int, float, int]] = []

    def work(shard_of: Callable[[int], int]) -> Work:
        async def run(transport: Transport, server: ParameterServer) -> None:
            started = transport.now()
            if transport.rank:
                await sleep(transport, 1e-6 * (4 - transport.rank))
                created = await server.push(add_one, ShardSelection(shard_of(transport.rank)))
                ended.append(
                    (transport.rank, transport.now() - started, int(created.clocks_before[0]))
                )

        return run

    on_workers(4, work(lambda _: 0))
    assert [(rank, clock) for rank, _, clock in ended] == [(3, 0), (2, 1), (1, 2)]
    assert [seconds for _, seconds, _ in ended] == pytest.approx(
        [1e-6 + n * 2 * TRIP for n in (1, 2, 3)]
    )
    ended.clear()
    # Ranks 1, 2 and 3 push to the shards of ranks 2, 3 and 0, a quarter of the vector each.
    on_workers(4, work(lambda rank: (rank + 1) % 4), shards=4)
    quarter = 2 * (2 * LATENCY + CARD / 4)
    assert [seconds for _, seconds, _ in ended] == pytest.approx(
        [1e-6 * n + quarter for n in (1, 2, 3)]
    )


def test_an_occupied_shard_is_not_waited_for() -> None:
    async def work(transport: Transport, server: ParameterServer) -> None:
        if transport.rank == 1:
            await server.push(add_one)
        if transport.rank == 2:
            await sleep(transport, LATENCY)
            started = transport.now()
            assert await server.try_push(add_one) is None
            assert transport.now() - started == pytest.approx(2 * LATENCY)
            assert server.counts.occupied == 1
            await sleep(transport, 1.0)
            created = await server.try_push(add_one)
            assert created is not None
            assert created.clocks_before.tolist() == [1]

    on_workers(3, work)


def test_a_push_in_the_background_hides_and_the_next_one_is_skipped_meanwhile() -> None:
    async def work(transport: Transport, server: ParameterServer) -> None:
        if transport.rank == 0:
            return
        started = transport.now()
        assert server.begin_push(add_one)
        assert server.is_under_way
        assert not server.begin_push(add_one)
        await sleep(transport, 2 * TRIP - 1e-3)
        assert server.is_under_way
        created = await server.drain()
        assert created is not None
        assert created.clocks_after.tolist() == [1]
        assert not server.is_under_way
        assert transport.now() - started == pytest.approx(2 * TRIP)
        counts = server.counts
        assert (counts.pushes, counts.skipped) == (1, 1)
        assert counts.exchange_seconds == pytest.approx(2 * TRIP)
        assert counts.hidden_seconds == pytest.approx(2 * TRIP - 1e-3)
        assert server.waited == pytest.approx(1e-3)

    on_workers(2, work)


def test_sums_in_the_background_follow_each_other_and_hide() -> None:
    #: The sum of two workers by recursive doubling, of a vector below the size for a ring.
    seconds = LATENCY + CARD
    results: list[Vector] = []
    waited: list[float] = []

    async def work(transport: Transport, _: ParameterServer) -> None:
        meter = Meter(transport.now)
        metered = MeteredTransport(transport, meter)
        first, second = np.full(SIZE, 1.0 + transport.rank), np.full(SIZE, 10.0 + transport.rank)
        await sleep(transport, 5e-4 * transport.rank)
        started = transport.now()
        sums = [metered.begin_all_reduce(first), metered.begin_all_reduce(second)]
        await sleep(transport, 1.5 * seconds)
        assert [result.is_done() for result in sums] == [True, False]
        await sums[0]
        await sums[1]
        assert sums[1].is_done()
        assert transport.now() - started == pytest.approx(2 * seconds + 5e-4 * (1 - transport.rank))
        results.extend((first, second))
        waited.append(transport.waited)
        assert meter.bytes == 2 * first.nbytes
        assert meter.seconds["compute"] == pytest.approx(1.5 * seconds + 5e-4 * transport.rank)

    on_workers(2, work)
    assert [set(result) for result in results] == [{3.0}, {21.0}] * 2
    assert waited == [0.0, 0.0]
