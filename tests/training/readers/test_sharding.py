"""The rows of an epoch are dealt to ranks: each once, nearly as many to each, the same everywhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.errors import ShardError
from training.readers.sharding import (
    EpochPlan,
    RowRange,
    assign_rows,
    plan_epoch,
    reading_order,
    rows_in,
    shuffled,
)

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def places(row_ranges: Iterable[RowRange]) -> Counter[tuple[int, int]]:
    """The places in the orders of the row groups."""
    return Counter(
        (group, place) for group, start, stop in row_ranges for place in range(start, stop)
    )


def all_places(rows: Sequence[int]) -> Counter[tuple[int, int]]:
    return Counter(
        (group, place) for group, num_rows in enumerate(rows) for place in range(num_rows)
    )


def rest_of(plan: EpochPlan, world_size: int, *, first_step: int = 0) -> list[RowRange]:
    shares = (
        assign_rows(plan, rank=rank, epoch=0, first_step=first_step) for rank in range(world_size)
    )
    return [piece for share in shares for piece in share.row_ranges]


@given(sizes, st.integers(1, 9), st.integers(1, 30), st.integers(0, 5))
def test_every_row_is_dealt_to_one_rank(
    rows: list[int], world_size: int, batch_size: int, epoch: int
) -> None:
    if sum(rows) < world_size:
        with pytest.raises(
            ShardError, match=rf"{sum(rows)} events, fewer than the {world_size} workers"
        ):
            plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=epoch)
        return
    plan = plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=epoch)
    assert places(rest_of(plan, world_size)) == all_places(rows)
    even = sum(rows) / world_size
    assert plan.num_steps == math.ceil(math.ceil(even) / batch_size)
    shares = [assign_rows(plan, rank=rank, epoch=epoch) for rank in range(world_size)]
    assert plan.samples.tolist() == [
        sum(of_ranks) for of_ranks in zip(*(share.sizes for share in shares), strict=True)
    ]
    for share in shares:
        assert sum(share.sizes) == rows_in(share.row_ranges)
        assert max(share.sizes) <= batch_size
        assert max(share.sizes) - min(share.sizes) <= 1
        assert abs(sum(share.sizes) - even) <= max(1, plan.num_steps)


@given(
    sizes, st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=3), st.integers(1, 9)
)
def test_what_other_numbers_of_ranks_left_of_an_epoch_is_dealt_anew(
    rows: list[int], others: list[tuple[int, int]], world_size: int
) -> None:
    before: list[tuple[int, int]] = []
    done: Counter[tuple[int, int]] = Counter()
    for ranks, asked in [*others, (world_size, 0)]:
        if ranks > sum(rows):
            return
        plan = plan_epoch(rows, world_size=ranks, batch_size=4, seed=1, epoch=0, before=before)
        # An epoch that is over is not resumed.
        steps = min(asked, plan.num_steps - 1)
        left = rest_of(plan, ranks, first_step=steps)
        assert done + places(rest_of(plan, ranks)) == all_places(rows)
        done += places(rest_of(plan, ranks)) - places(left)
        before.append((ranks, steps))


def test_row_groups_that_do_not_divide_were_left_out_of_an_epoch() -> None:
    """`train --workers 3` on four row groups dropped one of them."""
    plan = plan_epoch([105, 105, 105, 104], world_size=3, batch_size=32, seed=1, epoch=0)
    assert plan.samples.sum() == 419
    assert sorted(map(rows_in, plan.row_ranges)) == [139, 140, 140]


def test_a_row_group_is_read_by_one_rank_where_that_changes_a_step_by_one_row_at_most() -> None:
    plan = plan_epoch([105, 105, 105, 104], world_size=2, batch_size=32, seed=1, epoch=0)
    assert [len(row_ranges) for row_ranges in plan.row_ranges] == [2, 2]
    assert sorted(map(rows_in, plan.row_ranges)) == [209, 210]
    # One more row would be one more step.
    plan = plan_epoch([33, 31], world_size=2, batch_size=32, seed=1, epoch=0)
    assert [rows_in(row_ranges) for row_ranges in plan.row_ranges] == [32, 32]
    assert plan.num_steps == 1


@given(sizes, st.integers(1, 8), st.integers(1, 30), st.data())
def test_the_rest_of_an_epoch_is_the_end_of_the_whole(
    rows: list[int], world_size: int, batch_size: int, data: st.DataObject
) -> None:
    world_size = min(world_size, sum(rows))
    plan = plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=0)
    for rank in range(world_size):
        whole = assign_rows(plan, rank=rank, epoch=0)
        assert len(whole.sizes) == plan.num_steps
        first_step = data.draw(st.integers(0, plan.num_steps))
        rest = assign_rows(plan, rank=rank, epoch=0, first_step=first_step)
        assert rest.sizes == whole.sizes[first_step:]
        ordered, end = (list(places(share.row_ranges)) for share in (whole, rest))
        assert ordered[len(ordered) - len(end) :] == end
        assert len(end) == sum(rest.sizes)


def test_the_order_of_rows_is_the_one_of_earlier_versions() -> None:
    assert shuffled(8, seed=1, epoch=2, group=3).tolist() == [5, 3, 4, 1, 7, 6, 2, 0]
    orders = [reading_order(6, seed=seed, epoch=epoch) for seed, epoch in ((1, 2), (1, 3), (2, 2))]
    assert orders == [[2, 3, 4, 1, 5, 0], [1, 3, 0, 2, 5, 4], [2, 4, 3, 5, 0, 1]]
    plan = plan_epoch([10] * 6, world_size=3, batch_size=8, seed=1, epoch=2)
    assert [[piece.group for piece in row_ranges] for row_ranges in plan.row_ranges] == [
        [2, 3],
        [4, 1],
        [5, 0],
    ]
