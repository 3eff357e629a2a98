"""The server of one worker: what a rule sees, what is refused and counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from training.transports.basics import Vector, run_now
from training.transports.parameter_server import Layout, ParameterServer, Shard, ShardSelection
from training.transports.transport import Transport


def adding(change: Vector) -> Callable[[Shard], None]:
    """A rule that adds its part of some values."""

    def add(shard: Shard) -> None:
        shard.vector += change[shard.elements]

    return add


def alone(document: Vector, shards: int) -> ParameterServer:
    return ParameterServer(Layout(document.shape[-1], shards), document, now=time.perf_counter)


def pulled(server: ParameterServer, *shape: int) -> Any:
    out = np.empty(shape)
    run_now(server.pull(out))
    return out.tolist()


@pytest.mark.parametrize(
    ("size", "shards", "ranks"), [(1, 1, 1), (10, 3, 4), (7, 7, 3), (3, 5, 2), (1000, 16, 5)]
)
def test_shards_cover_a_vector_once_and_every_rank_owns_its_share(
    size: int, shards: int, ranks: int
) -> None:
    layout = Layout(size, shards, world_size=ranks)
    covered = [position for chunk in layout.slices for position in range(size)[chunk]]
    assert covered == list(range(size))
    assert max(layout.sizes) - min(layout.sizes) <= 1
    owned = [layout.owners.count(rank) for rank in range(ranks)]
    assert sum(owned) == shards
    assert max(owned) - min(owned) <= 1


def test_a_rule_sees_its_elements_with_their_moments_and_clocks_count_the_pushes_of_each_shard() -> (
    None
):
    server = alone(np.array([[0.0] * 5, [1.0] * 5]), 2)

    def nesterov(shard: Shard) -> None:
        shard.moments *= 0.5
        shard.vector += shard.moments[0] + shard.clock

    now = run_now(server.push(nesterov))
    assert (now.clocks_before.tolist(), now.clocks_after.tolist(), now.is_accepted) == (
        [0, 0],
        [1, 1],
        True,
    )
    now = run_now(server.push(nesterov, ShardSelection(shard=1)))
    assert (now.clocks_before.tolist(), now.clocks_after.tolist()) == ([1], [2])
    assert pulled(server, 5) == [0.5, 0.5, 1.75, 1.75, 1.75]
    assert pulled(server, 2, 5)[1] == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert server.counts.pushes == 3


def test_a_sparse_push_changes_the_elements_at_its_indices() -> None:
    server = alone(np.arange(6.0), 4)
    indices = np.array([0, 2, 5], np.int32)
    run_now(server.push(adding(np.array([10.0, 20.0, 30.0])), ShardSelection(indices=indices)))
    assert pulled(server, 6) == [10.0, 1.0, 22.0, 3.0, 4.0, 35.0]
    assert run_now(server.pull(np.empty(6))).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_result_that_is_not_finite_reaches_no_shard_and_is_counted(bad: float) -> None:
    server = alone(np.zeros((2, 4)), 2)
    now = run_now(server.push(adding(np.array([bad, 1.0, 2.0, 3.0]))))
    assert not now.is_accepted
    assert (now.clocks_before.tolist(), now.clocks_after.tolist()) == ([0, 0], [0, 1])

    def spoil_state(shard: Shard) -> None:
        shard.vector += 1
        shard.moments[0, 0] = bad

    run_now(server.push(spoil_state, ShardSelection(shard=0)))
    assert pulled(server, 2, 4) == [[0.0, 0.0, 2.0, 3.0], [0.0] * 4]
    assert (server.counts.refused, server.counts.pushes) == (2, 1)


def test_a_rule_that_fails_changes_nothing_and_leaves_the_shard_open() -> None:
    server = alone(np.zeros(2), 1)

    def fail(shard: Shard) -> None:
        shard.vector += 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_now(server.push(fail))
    assert pulled(server, 2) == [0.0, 0.0]


def test_a_single_worker_has_a_server_that_is_never_occupied_and_sums_of_its_own() -> None:
    transport = Transport()
    server = run_now(transport.parameter_server(np.zeros(3), shards=2))
    assert run_now(server.try_push(adding(np.ones(3)))) is not None
    assert server.begin_push(adding(np.ones(3)))
    ended = run_now(server.drain())
    assert ended is not None
    assert ended.clocks_after.tolist() == [2, 2]
    assert run_now(server.drain()) is None
    assert server.counts.bytes == 0

    async def summed(vector: Vector) -> bool:
        pending = transport.begin_all_reduce(vector)
        await pending
        return pending.is_done()

    assert run_now(summed(np.ones(2)))
