"""Deals the rows of an epoch to ranks, and divides them into steps: pure arithmetic, the same on every rank.

Petastorm's own sharding is `index % shard_count` for every seed, so it is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_core.random_streams import random_stream
from training.errors import ShardError

OwnedRows = Sequence[NDArray[np.int64]]
"""A worker's rows of each row group."""


class RowRange(NamedTuple):
    """Consecutive rows of a row group, in the reading order of an epoch."""

    group: int
    start: int
    stop: int


class EpochPlan(NamedTuple):
    """One epoch of all ranks, or what is left of one."""

    row_ranges: tuple[tuple[RowRange, ...], ...]
    """The rows of each rank, in reading order."""
    num_steps: int
    samples: NDArray[np.int64]
    """(num_steps,) number of events per step, of all ranks together."""


def plan_epoch(
    rows: Sequence[int],
    *,
    world_size: int,
    batch_size: int,
    seed: int,
    epoch: int,
    before: Sequence[tuple[int, int]] = (),
) -> EpochPlan:
    """Deal the rows of a split to ranks: each row to one rank, and nearly as many to each.

    Every rank takes the same number of steps, over which its rows are spread evenly.

    `rows`: rows of each row group. `batch_size`: highest number of rows of a step. `before`: numbers of ranks that
    began this epoch before, each with the number of its steps; the plan is of the rows that they left.

    Raises:
        ShardError: There are fewer rows than ranks.

    Examples:
        >>> plan = plan_epoch([10] * 3, world_size=2, batch_size=8, seed=1, epoch=0)
        >>> [[tuple(piece) for piece in row_ranges] for row_ranges in plan.row_ranges], plan.num_steps
        ([[(1, 0, 10), (2, 0, 5)], [(2, 5, 10), (0, 0, 10)]], 2)
        >>> plan.samples.tolist()
        [14, 16]
    """
    return _plan_epoch(tuple(rows), world_size, batch_size, seed, epoch, tuple(before))


# Cached, since thousands of simulated workers need the same plan.
@lru_cache(maxsize=4)
def _plan_epoch(
    rows: tuple[int, ...],
    world_size: int,
    batch_size: int,
    seed: int,
    epoch: int,
    before: tuple[tuple[int, int], ...],
) -> EpochPlan:
    if sum(rows) < world_size:
        raise ShardError(
            f"the training split has {sum(rows)} events, fewer than the {world_size} workers. Use at most {sum(rows)} "
            f"workers, or add events."
        )
    row_ranges = [
        RowRange(group, 0, rows[group])
        for group in reading_order(len(rows), seed=seed, epoch=epoch)
    ]
    for earlier_size, steps in before:
        dealt = plan_steps(
            split_at(row_ranges, _cuts(row_ranges, earlier_size, batch_size)), batch_size
        )
        left = (
            assign_rows(dealt, rank=rank, epoch=epoch, first_step=steps)
            for rank in range(earlier_size)
        )
        row_ranges = [piece for assignment in left for piece in assignment.row_ranges]
    return plan_steps(split_at(row_ranges, _cuts(row_ranges, world_size, batch_size)), batch_size)


def reading_order(num_groups: int, *, seed: int, epoch: int) -> list[int]:
    """The row groups in the order of an epoch: ranks that follow each other read parts of it that follow each other."""
    # The order of earlier versions.
    fixed = random_stream(seed, "rotation").permutation(num_groups)
    return [*random_stream(seed, "groups", epoch).permutation(fixed).tolist()]


def _cuts(row_ranges: Sequence[RowRange], world_size: int, batch_size: int) -> list[int]:
    """Where to cut the rows of some row_ranges for the ranks: (world_size + 1,).

    A cut that is next to the border of a piece is moved there, so that only one rank reads that row group. The steps of
    the ranks then differ by about one row, and their number stays the lowest.
    """
    borders = np.cumsum([0, *(stop - start for _, start, stop in row_ranges)])
    cuts = step_bounds(int(borders[-1]), world_size)
    most = int(np.diff(cuts).max())
    num_steps = -(-most // batch_size)
    near = borders[np.abs(borders[:, None] - cuts).argmin(axis=0)]
    moved = np.abs(near - cuts) <= min(num_steps, num_steps * batch_size - most) // 2
    return [*np.where(moved, near, cuts).tolist()]


def split_at(row_ranges: Sequence[RowRange], bounds: Sequence[int]) -> list[tuple[RowRange, ...]]:
    """The rows of some row_ranges, divided in their order at these numbers of rows; the first is 0.

    Examples:
        >>> ranges = [RowRange(4, 0, 3), RowRange(2, 1, 6)]
        >>> [[tuple(piece) for piece in part] for part in split_at(ranges, [0, 2, 2, 8])]
        [[(4, 0, 2)], [], [(4, 2, 3), (2, 1, 6)]]
    """
    parts: list[list[RowRange]] = [[] for _ in bounds[1:]]
    part = row = 0
    for group, first, stop in row_ranges:
        start = first
        while start < stop and row < bounds[-1]:
            while bounds[part + 1] <= row:
                part += 1
            taken = min(stop - start, bounds[part + 1] - row)
            parts[part].append(RowRange(group, start, start + taken))
            start, row = start + taken, row + taken
    return [tuple(each) for each in parts]


def plan_steps(row_ranges: Sequence[Sequence[RowRange]], batch_size: int) -> EpochPlan:
    """The steps in which ranks train on these rows of each, in reading order."""
    sizes, ranks = np.unique([rows_in(each) for each in row_ranges], return_counts=True)
    num_steps = -(-int(sizes.max()) // batch_size)
    samples = np.zeros(num_steps, dtype=np.int64)
    for size, times in zip(sizes.tolist(), ranks.tolist(), strict=True):
        samples += times * np.diff(step_bounds(size, num_steps))
    samples.flags.writeable = False
    return EpochPlan(tuple(map(tuple, row_ranges)), num_steps, samples)


def rows_in(row_ranges: Iterable[RowRange]) -> int:
    """Number of rows of some row_ranges."""
    return sum(stop - start for _, start, stop in row_ranges)


class Assignment(NamedTuple):
    """Rows that a worker trains on, in this order, and their division into steps."""

    epoch: int
    row_ranges: Sequence[RowRange]
    sizes: list[int]
    """Number of rows of each step."""
    later: Sequence[int] = ()
    """Number of epochs after `epoch` whose order each piece has; empty for none."""

    @property
    def groups(self) -> list[int]:
        """The row groups, in reading order."""
        return [piece.group for piece in self.row_ranges]


def assign_rows(plan: EpochPlan, *, rank: int, epoch: int, first_step: int = 0) -> Assignment:
    """The rows that a rank reads from some step of a plan on.

    Examples:
        >>> plan = plan_steps([[RowRange(2, 0, 10), RowRange(0, 0, 10)]], 5)
        >>> assign_rows(plan, rank=0, epoch=0, first_step=3)
        Assignment(epoch=0, row_ranges=(RowRange(group=0, start=5, stop=10),), sizes=[5], later=())
    """
    row_ranges = plan.row_ranges[rank]
    bounds = step_bounds(rows_in(row_ranges), plan.num_steps)[first_step:]
    _, left = split_at(row_ranges, [0, int(bounds[0]), int(bounds[-1])])
    return Assignment(epoch, left, np.diff(bounds).tolist())


# Cached, since the parts of a row group are read one after the other.
@lru_cache(maxsize=16)
def shuffled(num_rows: int, *, seed: int, epoch: int, group: int) -> NDArray[np.int64]:
    """Reading order of the rows of a row group, (num_rows,): it depends on seed, epoch and row group only."""
    return random_stream(seed, "rows", epoch, group).permutation(num_rows)


def reading_orders(
    assignment: Assignment, rows: Sequence[int], owned_rows: OwnedRows | None, *, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Rows to read for each piece of an assignment, in reading order.

    `rows`: rows of each row group. `own`: the worker's rows of each row group, to which the assignment refers; None: it
    reads all rows.
    """
    for (group, start, stop), later in zip(
        assignment.row_ranges, assignment.later or repeat(0), strict=False
    ):
        num_rows = rows[group] if owned_rows is None else len(owned_rows[group])
        order = shuffled(num_rows, seed=seed, epoch=assignment.epoch + later, group=group)[
            start:stop
        ]
        yield order if owned_rows is None else owned_rows[group][order]


def step_bounds(num_rows: int, num_steps: int) -> NDArray[np.int64]:
    """First row of each step, and the end: (num_steps + 1,), for steps of nearly equal length.

    Examples:
        >>> step_bounds(10, 3).tolist()
        [0, 3, 6, 10]
    """
    return np.arange(num_steps + 1, dtype=np.int64) * num_rows // num_steps


def even_parts(num_rows: int, num_parts: int) -> list[int]:
    """Sizes of parts of nearly equal size."""
    return [*np.diff(step_bounds(num_rows, num_parts)).tolist()]
