"""Divides the rows of an epoch among ranks and into steps: pure arithmetic, the same on every rank.

Petastorm's own sharding is `index % shard_count` for every seed, so it is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_core.random_streams import random_stream
from training.errors import ShardError

OwnedRows = Sequence[NDArray[np.int64]]
"""For each row group, the numbers of the rows in it that belong to one worker."""


class RowRange(NamedTuple):
    """Consecutive rows of a row group, in the reading order of an epoch."""

    group: int
    start: int
    stop: int


class PreviousWorkers(NamedTuple):
    """Workers that began an epoch, and the number of steps that they finished of it."""

    world_size: int
    num_steps: int


class EpochPlan(NamedTuple):
    """One epoch of all ranks, or the remaining part of one."""

    row_ranges: tuple[tuple[RowRange, ...], ...]
    """The rows of each rank, in reading order."""
    num_steps: int
    """Number of steps, the same for all ranks."""
    samples: NDArray[np.int64]
    """(num_steps,) number of events per step, of all ranks together."""


def plan_epoch(
    group_rows: Sequence[int],
    *,
    world_size: int,
    batch_size: int,
    seed: int,
    epoch: int,
    previous_world_sizes: Sequence[PreviousWorkers] = (),
) -> EpochPlan:
    """Divide the rows of a split among ranks: each row to one rank, and nearly as many to each.

    The row groups are put into the random order of the epoch, and each rank gets a consecutive part
    of it. Every rank takes the same number of steps, over which its rows are spread evenly.

    `group_rows`: number of rows of each row group. `batch_size`: highest number of rows of a step
    of one rank. `previous_world_sizes`: workers that began this epoch and stopped, the first ones
    first. The plan divides the rows that they left.

    Raises:
        ShardError: There are fewer rows than ranks.

    Examples:
        >>> plan = plan_epoch([10] * 3, world_size=2, batch_size=8, seed=1, epoch=0)
        >>> [[tuple(rows) for rows in row_ranges] for row_ranges in plan.row_ranges]
        [[(1, 0, 10), (2, 0, 5)], [(2, 5, 10), (0, 0, 10)]]
        >>> plan.num_steps, plan.samples.tolist()
        (2, [14, 16])
    """
    return _plan_epoch(
        tuple(group_rows), world_size, batch_size, seed, epoch, tuple(previous_world_sizes)
    )


# Cached, since thousands of simulated workers need the same plan.
@lru_cache(maxsize=4)
def _plan_epoch(
    group_rows: tuple[int, ...],
    world_size: int,
    batch_size: int,
    seed: int,
    epoch: int,
    previous_world_sizes: tuple[PreviousWorkers, ...],
) -> EpochPlan:
    """See `plan_epoch`; the arguments are tuples, so that results can be cached."""
    num_rows = sum(group_rows)
    if num_rows < world_size:
        raise ShardError(
            f"the training split has {num_rows} events, fewer than the {world_size} workers. "
            f"Use at most {num_rows} workers, or add events."
        )
    order = reading_order(len(group_rows), seed=seed, epoch=epoch)
    remaining = [RowRange(group, 0, group_rows[group]) for group in order]
    # The division among earlier workers is repeated, to find the rows that each had not read.
    for previous_size, num_steps in previous_world_sizes:
        previous_plan = _divide(remaining, previous_size, batch_size)
        remaining = []
        for rank in range(previous_size):
            unread = assign_rows(previous_plan, rank=rank, epoch=epoch, first_step=num_steps)
            remaining += unread.row_ranges
    return _divide(remaining, world_size, batch_size)


def _divide(row_ranges: Sequence[RowRange], world_size: int, batch_size: int) -> EpochPlan:
    """Divide rows among ranks, and each rank's rows into steps."""
    cuts = _choose_cuts(row_ranges, world_size, batch_size)
    return plan_steps(split_at(row_ranges, cuts), batch_size)


def reading_order(num_groups: int, *, seed: int, epoch: int) -> list[int]:
    """Return the row groups in the random order of an epoch; ranks read consecutive parts of it."""
    # One permutation would do, but two give the order of earlier versions of this program.
    rotation = random_stream(seed, "rotation").permutation(num_groups)
    order: list[int] = random_stream(seed, "groups", epoch).permutation(rotation).tolist()
    return order


def _choose_cuts(row_ranges: Sequence[RowRange], world_size: int, batch_size: int) -> list[int]:
    """Return the rows at which the ranges are divided among the ranks, (world_size + 1,).

    The cuts make even shares. But a cut that is near the border of a range moves there, so that
    only one rank reads that row group. It may move by half a row per step at most, and not so far
    that a rank needs one more step. So the steps of the ranks differ by about one row.
    """
    lengths = [stop - start for _, start, stop in row_ranges]
    borders = np.cumsum([0, *lengths])
    cuts = step_bounds(int(borders[-1]), world_size)
    largest_share = int(np.diff(cuts).max())
    num_steps = math.ceil(largest_share / batch_size)
    # A matrix of distances, (num_borders, num_cuts), gives the nearest border of each cut.
    nearest_border = borders[np.abs(borders[:, None] - cuts).argmin(axis=0)]
    # A share may grow by this number of rows before its rank needs one more step.
    spare_rows = num_steps * batch_size - largest_share
    # Both cuts of a share may move, so each gets half.
    max_move = min(num_steps, spare_rows) // 2
    is_near_border = np.abs(nearest_border - cuts) <= max_move
    moved_cuts: list[int] = np.where(is_near_border, nearest_border, cuts).tolist()
    return moved_cuts


def split_at(row_ranges: Iterable[RowRange], bounds: Sequence[int]) -> list[tuple[RowRange, ...]]:
    """Divide row ranges, in their order, into parts that end at these numbers of rows.

    A range that contains a bound is cut there. Rows behind the last bound are left out.

    `bounds`: ascending, from 0 to the end of the last part.

    Examples:
        >>> ranges = [RowRange(4, 0, 3), RowRange(2, 1, 6)]
        >>> [[tuple(rows) for rows in part] for part in split_at(ranges, [0, 2, 2, 8])]
        [[(4, 0, 2)], [], [(4, 2, 3), (2, 1, 6)]]
    """
    shares: list[list[RowRange]] = [[] for _ in bounds[1:]]
    share = num_divided = 0
    for group, first, stop in row_ranges:
        start = first
        while start < stop and num_divided < bounds[-1]:
            # Parts that are full, or have no rows, are passed over.
            while bounds[share + 1] <= num_divided:
                share += 1
            length = min(stop - start, bounds[share + 1] - num_divided)
            shares[share].append(RowRange(group, start, start + length))
            start += length
            num_divided += length
    return [tuple(share_ranges) for share_ranges in shares]


def plan_steps(rank_ranges: Iterable[Sequence[RowRange]], batch_size: int) -> EpochPlan:
    """Plan the steps in which each rank trains on its row ranges, in reading order.

    The rank with the most rows needs the most steps, and all take this number. Each rank spreads
    its rows evenly over the steps.
    """
    row_ranges = tuple(tuple(ranges) for ranges in rank_ranges)
    num_rows = [count_rows(ranges) for ranges in row_ranges]
    # Ranks with equally many rows have equal steps, so each number of rows is counted once.
    share_sizes, num_ranks = np.unique(num_rows, return_counts=True)
    num_steps = math.ceil(int(share_sizes.max()) / batch_size)
    samples = np.zeros(num_steps, dtype=np.int64)
    for share_size, count in zip(share_sizes.tolist(), num_ranks.tolist(), strict=True):
        samples += count * np.diff(step_bounds(share_size, num_steps))
    # Cached plans are shared, so nobody may change them.
    samples.flags.writeable = False
    return EpochPlan(row_ranges, num_steps, samples)


def count_rows(row_ranges: Iterable[RowRange]) -> int:
    """Return the number of rows of some row ranges."""
    return sum(stop - start for _, start, stop in row_ranges)


class Assignment(NamedTuple):
    """Rows that a worker trains on, in this order, and their division into steps."""

    epoch: int
    row_ranges: Sequence[RowRange]
    sizes: list[int]
    """Number of rows of each step."""
    epochs_later: Sequence[int] = ()
    """For each range, the number of epochs after `epoch` whose row order it has.

    It is empty if all are 0. Only a worker that owns rows reads several epochs in one assignment.
    """

    @property
    def groups(self) -> list[int]:
        """The row groups, in reading order."""
        return [rows.group for rows in self.row_ranges]


def assign_rows(plan: EpochPlan, *, rank: int, epoch: int, first_step: int = 0) -> Assignment:
    """Return the rows that a rank reads from step `first_step` of a plan to its end.

    Examples:
        >>> plan = plan_steps([[RowRange(2, 0, 10), RowRange(0, 0, 10)]], 5)
        >>> assignment = assign_rows(plan, rank=0, epoch=0, first_step=3)
        >>> assignment.row_ranges, assignment.sizes
        ((RowRange(group=0, start=5, stop=10),), [5])
    """
    row_ranges = plan.row_ranges[rank]
    bounds = step_bounds(count_rows(row_ranges), plan.num_steps)[first_step:]
    _, unread = split_at(row_ranges, [0, int(bounds[0]), int(bounds[-1])])
    return Assignment(epoch, unread, np.diff(bounds).tolist())


# Cached, since the parts of a row group are read one after the other.
@lru_cache(maxsize=16)
def shuffled(num_rows: int, *, seed: int, epoch: int, group: int) -> NDArray[np.int64]:
    """Return the random reading order of the rows of a row group, (num_rows,).

    It depends on seed, epoch and row group only.
    """
    return random_stream(seed, "rows", epoch, group).permutation(num_rows)


def reading_orders(
    assignment: Assignment,
    group_rows: Sequence[int],
    owned_rows: OwnedRows | None,
    *,
    seed: int,
) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the rows to read for each range of an assignment, in reading order.

    A range is a part of the shuffled order of its row group. The numbers count from the begin of
    the row group.

    `group_rows`: number of rows of each row group. `owned_rows`: the worker's rows of each row
    group; the ranges then count only these. None: the worker reads all rows.
    """
    epochs_later = assignment.epochs_later or repeat(0)
    for (group, start, stop), later in zip(assignment.row_ranges, epochs_later, strict=False):
        num_rows = group_rows[group] if owned_rows is None else len(owned_rows[group])
        order = shuffled(num_rows, seed=seed, epoch=assignment.epoch + later, group=group)
        rows = order[start:stop]
        yield rows if owned_rows is None else owned_rows[group][rows]


def step_bounds(num_rows: int, num_steps: int) -> NDArray[np.int64]:
    """Return the first row of each step, and the end, for steps of nearly equal length.

    The result is (num_steps + 1,). Lengths differ by at most one row.

    Examples:
        >>> step_bounds(10, 3).tolist()
        [0, 3, 6, 10]
    """
    return np.arange(num_steps + 1, dtype=np.int64) * num_rows // num_steps


def even_parts(num_rows: int, num_parts: int) -> list[int]:
    """Return the sizes of `num_parts` parts of `num_rows` rows; they differ by at most one row."""
    sizes: list[int] = np.diff(step_bounds(num_rows, num_parts)).tolist()
    return sizes
