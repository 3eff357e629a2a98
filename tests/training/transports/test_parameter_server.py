"""The server of one worker: the arrays of rules, and refused results."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from training.transports.basics import Vector, run_now
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.pushes import Push, Shard, ShardSelection
from training.transports.transport import Transport


def adding(change: Vector) -> Callable[[Shard], None]:
    """A rule that adds its elements of some values."""

    def add(shard: Shard) -> None:
        shard.vector += change[shard.elements]

    return add


def server_of_one_worker(rows: Vector, shards: int) -> ParameterServer:
    """A server of a vector, or of a vector with its moments in further rows."""
    layout = Layout(rows.shape[-1], shards)
    return ParameterServer(layout, rows, now=time.perf_counter)


def pulled(server: ParameterServer, *shape: int) -> Any:
    out = np.empty(shape)
    run_now(server.pull(out))
    return out.tolist()


def clocks_of(push: Push) -> tuple[list[int], list[int]]:
    """The clocks of the shards before and after a push."""
    return push.clocks_before.tolist(), push.clocks_after.tolist()


@pytest.mark.parametrize(
    ("size", "shards", "ranks"), [(1, 1, 1), (10, 3, 4), (7, 7, 3), (3, 5, 2), (1000, 16, 5)]
)
def test_shards_cover_a_vector_once_and_every_rank_owns_its_share(
    size: int, shards: int, ranks: int
) -> None:
    layout = Layout(size, shards, world_size=ranks)

    all_elements = np.arange(size)
    elements_of_shards = [all_elements[elements] for elements in layout.slices]
    assert np.concatenate(elements_of_shards).tolist() == all_elements.tolist()
    assert max(layout.sizes) - min(layout.sizes) <= 1
    num_owned = [layout.owners.count(rank) for rank in range(ranks)]
    assert sum(num_owned) == shards
    assert max(num_owned) - min(num_owned) <= 1


def test_a_rule_changes_vector_and_moments_and_each_shard_counts_its_pushes() -> None:
    vector_and_moments = np.array([np.zeros(5), np.ones(5)])
    server = server_of_one_worker(vector_and_moments, 2)

    def nesterov(shard: Shard) -> None:
        shard.moments *= 0.5
        shard.vector += shard.moments[0] + shard.clock

    first = run_now(server.push(nesterov))
    second = run_now(server.push(nesterov, ShardSelection(shard=1)))

    assert clocks_of(first) == ([0, 0], [1, 1])
    assert clocks_of(second) == ([1], [2])
    assert first.is_accepted
    # 0.5, and for the second shard 0.25 and its clock of 1 more.
    expected_vector = [0.5, 0.5, 1.75, 1.75, 1.75]
    vector, moments = pulled(server, 2, 5)
    assert vector == expected_vector
    assert pulled(server, 5) == expected_vector
    assert moments == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert server.counts.pushes == 3


def test_a_sparse_push_changes_the_elements_at_its_indices() -> None:
    server = server_of_one_worker(np.arange(6.0), 4)
    selection = ShardSelection(indices=np.array([0, 2, 5], np.int32))
    changes = np.array([10.0, 20.0, 30.0])

    run_now(server.push(adding(changes), selection))

    clocks = run_now(server.pull(np.empty(6)))
    assert pulled(server, 6) == [10.0, 1.0, 22.0, 3.0, 4.0, 35.0]
    assert clocks.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_result_that_is_not_finite_reaches_no_shard_and_is_counted(bad: float) -> None:
    server = server_of_one_worker(np.zeros((2, 4)), 2)

    def spoil_moments(shard: Shard) -> None:
        shard.vector += 1
        shard.moments[0, 0] = bad

    changes = np.array([bad, 1.0, 2.0, 3.0])

    push = run_now(server.push(adding(changes)))
    run_now(server.push(spoil_moments, ShardSelection(shard=0)))

    assert not push.is_accepted
    assert clocks_of(push) == ([0, 0], [0, 1])
    vector, moments = pulled(server, 2, 4)
    assert vector == [0.0, 0.0, 2.0, 3.0]
    assert moments == [0.0, 0.0, 0.0, 0.0]
    assert server.counts.refused == 2
    assert server.counts.pushes == 1


def test_a_rule_that_fails_changes_nothing_and_leaves_the_shard_open() -> None:
    server = server_of_one_worker(np.zeros(2), 1)

    def fail(shard: Shard) -> None:
        shard.vector += 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_now(server.push(fail))
    assert pulled(server, 2) == [0.0, 0.0]


def test_a_single_worker_has_a_server_that_is_never_occupied() -> None:
    server = run_now(Transport().parameter_server(np.zeros(3), shards=2))

    tried = run_now(server.try_push(adding(np.ones(3))))
    has_begun = server.begin_push(adding(np.ones(3)))
    last_push = run_now(server.drain())

    assert tried is not None
    assert has_begun
    assert last_push is not None
    assert last_push.clocks_after.tolist() == [2, 2]
    assert run_now(server.drain()) is None
    assert server.counts.bytes == 0


def test_a_sum_of_a_single_worker_is_done_at_once() -> None:
    pending = Transport().begin_all_reduce(np.ones(2))

    run_now(pending.wait())

    assert pending.is_done()
