"""The division of an epoch's rows among ranks: each row once, nearly as many to each."""

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
    PreviousWorkers,
    RowRange,
    assign_rows,
    count_rows,
    plan_epoch,
    reading_order,
    shuffled,
)

GROUP_ROWS = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def list_rows(row_ranges: Iterable[RowRange]) -> list[tuple[int, int]]:
    """Row group and row of each row of the ranges."""
    rows: list[tuple[int, int]] = []
    for group, start, stop in row_ranges:
        rows += [(group, row) for row in range(start, stop)]
    return rows


def all_rows(group_rows: Sequence[int]) -> Counter[tuple[int, int]]:
    groups = [RowRange(group, 0, num_rows) for group, num_rows in enumerate(group_rows)]
    return Counter(list_rows(groups))


def count_planned(
    plan: EpochPlan, world_size: int, *, first_step: int = 0
) -> Counter[tuple[int, int]]:
    """How often each row is assigned to a rank from a step on."""
    planned: Counter[tuple[int, int]] = Counter()
    for rank in range(world_size):
        assignment = assign_rows(plan, rank=rank, epoch=0, first_step=first_step)
        planned.update(list_rows(assignment.row_ranges))
    return planned


@given(GROUP_ROWS, st.integers(1, 9), st.integers(1, 30), st.integers(0, 5))
def test_every_row_is_assigned_to_one_rank(
    group_rows: list[int], world_size: int, batch_size: int, epoch: int
) -> None:
    num_rows = sum(group_rows)
    if num_rows < world_size:
        message = rf"{num_rows} events, fewer than the {world_size} workers"
        with pytest.raises(ShardError, match=message):
            plan_epoch(group_rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=0)
        return

    plan = plan_epoch(group_rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=epoch)

    assert count_planned(plan, world_size) == all_rows(group_rows)
    fair_share = num_rows / world_size
    assert plan.num_steps == math.ceil(math.ceil(fair_share) / batch_size)
    shares = [assign_rows(plan, rank=rank, epoch=epoch) for rank in range(world_size)]
    sizes_by_step = zip(*(share.sizes for share in shares), strict=True)
    assert plan.samples.tolist() == list(map(sum, sizes_by_step))
    for share in shares:
        assert sum(share.sizes) == count_rows(share.row_ranges)
        assert max(share.sizes) <= batch_size
        assert max(share.sizes) - min(share.sizes) <= 1
        assert abs(sum(share.sizes) - fair_share) <= max(1, plan.num_steps)


@given(
    GROUP_ROWS,
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=3),
    st.integers(1, 9),
)
def test_the_rows_that_other_numbers_of_ranks_left_are_divided_again(
    group_rows: list[int], interrupted: list[tuple[int, int]], world_size: int
) -> None:
    previous: list[PreviousWorkers] = []
    trained: Counter[tuple[int, int]] = Counter()
    for num_ranks, max_steps in [*interrupted, (world_size, 0)]:
        if num_ranks > sum(group_rows):
            return
        plan = plan_epoch(
            group_rows,
            world_size=num_ranks,
            batch_size=4,
            seed=1,
            epoch=0,
            previous_world_sizes=previous,
        )
        planned = count_planned(plan, num_ranks)
        assert trained + planned == all_rows(group_rows)
        # A finished epoch is not resumed.
        num_steps = min(max_steps, plan.num_steps - 1)
        trained += planned - count_planned(plan, num_ranks, first_step=num_steps)
        previous.append(PreviousWorkers(num_ranks, num_steps))


def test_row_groups_that_the_ranks_do_not_divide_are_read_whole() -> None:
    plan = plan_epoch([105, 105, 105, 104], world_size=3, batch_size=32, seed=1, epoch=0)

    assert plan.samples.sum() == 419
    rows_of_ranks = [count_rows(row_ranges) for row_ranges in plan.row_ranges]
    assert sorted(rows_of_ranks) == [139, 140, 140]


def test_a_row_group_is_read_by_one_rank_if_a_step_changes_by_at_most_one_row() -> None:
    plan = plan_epoch([105, 105, 105, 104], world_size=2, batch_size=32, seed=1, epoch=0)

    groups_of_ranks = [len(row_ranges) for row_ranges in plan.row_ranges]
    rows_of_ranks = [count_rows(row_ranges) for row_ranges in plan.row_ranges]
    assert groups_of_ranks == [2, 2]
    assert sorted(rows_of_ranks) == [209, 210]


def test_a_cut_is_not_moved_if_that_needs_another_step() -> None:
    plan = plan_epoch([33, 31], world_size=2, batch_size=32, seed=1, epoch=0)

    rows_of_ranks = [count_rows(row_ranges) for row_ranges in plan.row_ranges]
    assert rows_of_ranks == [32, 32]
    assert plan.num_steps == 1


@given(GROUP_ROWS, st.integers(1, 8), st.integers(1, 30), st.data())
def test_a_resumed_epoch_is_the_end_of_the_whole_epoch(
    group_rows: list[int], world_size: int, batch_size: int, data: st.DataObject
) -> None:
    world_size = min(world_size, sum(group_rows))
    plan = plan_epoch(group_rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=0)

    for rank in range(world_size):
        first_step = data.draw(st.integers(0, plan.num_steps))
        epoch = assign_rows(plan, rank=rank, epoch=0)
        resumed = assign_rows(plan, rank=rank, epoch=0, first_step=first_step)

        assert len(epoch.sizes) == plan.num_steps
        assert resumed.sizes == epoch.sizes[first_step:]
        resumed_rows = list_rows(resumed.row_ranges)
        assert len(resumed_rows) == sum(resumed.sizes)
        epoch_rows = list_rows(epoch.row_ranges)
        num_rows_before = len(epoch_rows) - len(resumed_rows)
        assert epoch_rows[num_rows_before:] == resumed_rows


def test_the_order_of_rows_is_the_one_of_earlier_versions() -> None:
    rows_of_group = shuffled(8, seed=1, epoch=2, group=3)
    assert rows_of_group.tolist() == [5, 3, 4, 1, 7, 6, 2, 0]
    assert reading_order(6, seed=1, epoch=2) == [2, 3, 4, 1, 5, 0]
    assert reading_order(6, seed=1, epoch=3) == [1, 3, 0, 2, 5, 4]
    assert reading_order(6, seed=2, epoch=2) == [2, 4, 3, 5, 0, 1]
    plan = plan_epoch([10] * 6, world_size=3, batch_size=8, seed=1, epoch=2)
    groups = [assign_rows(plan, rank=rank, epoch=2).groups for rank in range(3)]
    assert groups == [[2, 3], [4, 1], [5, 0]]
