"""Assignment of row groups: disjoint, even, rotating, deterministic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.errors import ShardError
from training.readers.sharding import plan_epoch, share_of, shuffled, step_bounds

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@given(sizes, st.integers(1, 8), st.integers(1, 30), st.integers(0, 5))
def test_every_rank_gets_other_groups_and_nothing_is_lost(
    rows: list[int], world_size: int, batch_size: int, epoch: int
) -> None:
    if len(rows) < world_size:
        with pytest.raises(ShardError, match=r"features\.feed_workers"):
            plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=epoch)
        return
    plan = plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=epoch)
    used = plan.groups.ravel().tolist()
    assert set(used) <= set(range(len(rows)))
    assert len(set(used)) == len(used) == len(rows) - len(rows) % world_size
    for groups in plan.groups:
        lengths = np.diff(step_bounds(sum(rows[group] for group in groups), plan.num_steps))
        assert lengths.sum() == sum(rows[group] for group in groups)
        assert lengths.max() <= batch_size
        assert lengths.max() - lengths.min() <= 1


def test_what_is_left_out_moves_on_until_every_group_had_its_turn() -> None:
    plans = [plan_epoch([10] * 7, world_size=3, batch_size=10, seed=4, epoch=epoch) for epoch in range(7)]
    left_out = [set(range(7)) - set(plan.groups.ravel().tolist()) for plan in plans]
    assert sorted(group for groups in left_out for group in groups) == list(range(7))


def test_the_plan_depends_on_seed_and_epoch_only() -> None:
    def groups(seed: int, epoch: int) -> list[list[int]]:
        return plan_epoch([10] * 12, world_size=3, batch_size=10, seed=seed, epoch=epoch).groups.tolist()

    assert groups(1, 0) == groups(1, 0)
    assert groups(1, 0) != groups(1, 1)
    assert groups(1, 0) != groups(2, 0)


@given(sizes, st.integers(1, 8), st.integers(1, 30), st.data())
def test_the_rest_of_an_epoch_is_the_end_of_the_whole(
    rows: list[int], world_size: int, batch_size: int, data: st.DataObject
) -> None:
    world_size = min(world_size, len(rows))
    plan = plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=1, epoch=0)
    for rank in range(world_size):
        whole = share_of(plan, rows, rank=rank, epoch=0)
        assert whole.groups == plan.groups[rank].tolist()
        assert len(whole.sizes) == plan.num_steps
        assert sum(whole.sizes) == sum(rows[group] for group in whole.groups)
        first_step = data.draw(st.integers(0, plan.num_steps))
        rest = share_of(plan, rows, rank=rank, epoch=0, first_step=first_step)
        assert rest.sizes == whole.sizes[first_step:]
        assert rest.groups == whole.groups[len(whole.groups) - len(rest.groups) :]
        assert sum(stop - start for _, start, stop in rest.pieces) == sum(rest.sizes)
        assert all(0 <= start < stop == rows[group] for group, start, stop in rest.pieces)
        assert not any(start for _, start, _ in rest.pieces[1:])


@pytest.mark.parametrize("first_step", [-1, 4])
def test_a_step_outside_of_the_epoch_is_refused(first_step: int) -> None:
    plan = plan_epoch([10, 10], world_size=1, batch_size=8, seed=1, epoch=0)
    with pytest.raises(ValueError, match=f"step {first_step} in an epoch of 3 steps"):
        share_of(plan, [10, 10], rank=0, epoch=0, first_step=first_step)


def test_the_order_of_rows_is_the_one_of_earlier_versions() -> None:
    assert shuffled(8, seed=1, epoch=2, group=3).tolist() == [5, 3, 4, 1, 7, 6, 2, 0]
    plan = plan_epoch([10] * 7, world_size=3, batch_size=8, seed=1, epoch=2)
    assert plan.groups.tolist() == [[5, 2], [1, 6], [4, 3]]
