"""Assigns row groups and numbers of steps to ranks: pure arithmetic, the same on every rank.

Petastorm's own sharding is `index % shard_count` for every seed, so it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import ShardError
from training.random_streams import random_stream

OwnRows = Sequence[NDArray[np.int64]]
"""A worker's rows of each row group."""


class EpochPlan(NamedTuple):
    """One epoch of all ranks."""

    groups: NDArray[np.int64]
    """(world_size, groups_per_rank) row groups of each rank, in reading order."""
    num_steps: int
    """Number of steps of every rank."""
    samples: NDArray[np.int64]
    """(num_steps,) number of events per step, of all ranks together."""


def plan_epoch(rows: Sequence[int], *, world_size: int, batch_size: int, seed: int, epoch: int) -> EpochPlan:
    """Assign the row groups of a split to ranks.

    Every rank gets the same number of row groups and takes the same number of steps. A rank's rows are spread evenly
    over its steps, so that none is dropped. If the division leaves a remainder, other row groups are left out in every
    epoch.

    Args:
        rows: Rows of each row group.
        world_size: Number of ranks.
        batch_size: Highest number of rows of a step.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.

    Raises:
        ShardError: There are fewer row groups than ranks.

    Examples:
        >>> plan = plan_epoch([10] * 5, world_size=2, batch_size=8, seed=1, epoch=0)
        >>> plan.groups.shape, plan.num_steps
        ((2, 2), 3)
        >>> plan_epoch([3, 4], world_size=2, batch_size=2, seed=1, epoch=0).samples.tolist()
        [3, 4]
    """
    return _plan_epoch(tuple(rows), world_size, batch_size, seed, epoch)


# Cached, since thousands of simulated workers need the same plan.
@lru_cache(maxsize=4)
def _plan_epoch(rows: tuple[int, ...], world_size: int, batch_size: int, seed: int, epoch: int) -> EpochPlan:
    num_groups = len(rows)
    if num_groups < world_size:
        raise ShardError(
            f"the training split has {num_groups} row groups, fewer than the {world_size} workers. Use at most "
            f"{num_groups} workers, or set features.feed_workers: {world_size} and make the features again."
        )
    remainder = num_groups % world_size
    fixed = random_stream(seed, "rotation").permutation(num_groups)
    used = np.roll(fixed, -epoch * remainder)[remainder:]
    groups = random_stream(seed, "groups", epoch).permutation(used).reshape(world_size, -1)
    num_steps, samples = samples_of_steps(np.asarray(rows)[groups].sum(axis=1), batch_size)
    for array in (groups, samples):
        array.flags.writeable = False
    return EpochPlan(groups, num_steps, samples)


def samples_of_steps(shard_rows: NDArray[np.int64], batch_size: int) -> tuple[int, NDArray[np.int64]]:
    """Number of steps of every rank, and number of events per step of all ranks together.

    Args:
        shard_rows: (world_size,) rows of each rank.
        batch_size: Highest number of rows of a step.

    Examples:
        >>> steps, samples = samples_of_steps(np.array([3, 4]), 2)
        >>> steps, samples.tolist()
        (2, [3, 4])
    """
    num_steps = -(-int(shard_rows.max()) // batch_size)
    samples = np.zeros(num_steps, dtype=np.int64)
    for size, times in zip(*np.unique(shard_rows, return_counts=True), strict=True):
        samples += times * np.diff(step_bounds(int(size), num_steps))
    return num_steps, samples


class Piece(NamedTuple):
    """Consecutive rows of a row group, in the reading order of an epoch."""

    group: int
    start: int
    stop: int


class Share(NamedTuple):
    """Rows that a worker trains on, in this order, and their division into steps."""

    epoch: int
    pieces: list[Piece]
    sizes: list[int]
    """Number of rows of each step."""
    later: Sequence[int] = ()
    """Number of epochs after `epoch` whose order each piece has; empty for none."""

    @property
    def groups(self) -> list[int]:
        """The row groups, in reading order."""
        return [piece.group for piece in self.pieces]


def share_of(plan: EpochPlan, rows: Sequence[int], *, rank: int, epoch: int, first_step: int = 0) -> Share:
    """The rows that a rank reads from some step of an epoch on, without the row groups of earlier steps only.

    Args:
        plan: The epoch's plan.
        rows: Rows of each row group.
        rank: Rank of the worker.
        epoch: Number of the epoch, from 0.
        first_step: Number of steps to skip.

    Raises:
        ValueError: The epoch has fewer steps.

    Examples:
        >>> plan = EpochPlan(np.array([[2, 0]]), 4, np.array([5] * 4))
        >>> share_of(plan, [10, 10, 10], rank=0, epoch=0).sizes
        [5, 5, 5, 5]
        >>> share_of(plan, [10, 10, 10], rank=0, epoch=0, first_step=3)
        Share(epoch=0, pieces=[Piece(group=0, start=5, stop=10)], sizes=[5], later=())
    """
    if not 0 <= first_step <= plan.num_steps:
        raise ValueError(f"there is no step {first_step} in an epoch of {plan.num_steps} steps")
    groups = plan.groups[rank].tolist()
    bounds = step_bounds(sum(rows[group] for group in groups), plan.num_steps)[first_step:]
    pieces, skipped = [], int(bounds[0])
    for group in groups:
        if skipped < rows[group]:
            pieces.append(Piece(group, skipped, rows[group]))
        skipped = max(0, skipped - rows[group])
    return Share(epoch, pieces, np.diff(bounds).tolist())


# Cached, since the parts of a row group are read one after the other.
@lru_cache(maxsize=16)
def shuffled(num_rows: int, *, seed: int, epoch: int, group: int) -> NDArray[np.int64]:
    """Reading order of the rows of a row group, (num_rows,): it depends on seed, epoch and row group only.

    Examples:
        >>> sorted(shuffled(5, seed=1, epoch=0, group=3).tolist())
        [0, 1, 2, 3, 4]
    """
    return random_stream(seed, "rows", epoch, group).permutation(num_rows)


def reading_orders(share: Share, rows: Sequence[int], own: OwnRows | None, *, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows to read for each piece of a share, in reading order.

    Args:
        share: The share.
        rows: Rows of each row group.
        own: The worker's rows of each row group, to which the share refers; None: it reads all rows.
        seed: Seed of the run.
    """
    for (group, start, stop), later in zip(share.pieces, share.later or repeat(0), strict=False):
        num_rows = rows[group] if own is None else len(own[group])
        order = shuffled(num_rows, seed=seed, epoch=share.epoch + later, group=group)[start:stop]
        yield order if own is None else own[group][order]


def step_bounds(num_rows: int, num_steps: int) -> NDArray[np.int64]:
    """First row of each step, and the end: (num_steps + 1,), for steps of nearly equal length.

    Examples:
        >>> step_bounds(10, 3).tolist()
        [0, 3, 6, 10]
    """
    return np.arange(num_steps + 1, dtype=np.int64) * num_rows // num_steps


def even_parts(num_rows: int, num_parts: int) -> list[int]:
    """Sizes of parts of nearly equal size.

    Examples:
        >>> even_parts(10, 3)
        [3, 3, 4]
    """
    sizes: list[int] = np.diff(step_bounds(num_rows, num_parts)).tolist()
    return sizes
