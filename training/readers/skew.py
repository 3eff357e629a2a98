"""Unequal data: each training event belongs to one worker, and the workers' mixtures of classes differ.

All workers own the same number of events, so that each event is read once in an epoch of equal parts. The row groups
are mixed, so a worker owns some rows of every row group: it reads all row groups in each epoch (with `reader: arrow`
once), as many times the data as there are workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from features.matrices import as_numpy
from hep_core.checked_parquet import read_parquet
from hep_core.random_streams import random_stream
from training.errors import ShardError
from training.readers.batch import reporting
from training.readers.sharding import (
    Assignment,
    EpochPlan,
    RowRange,
    plan_steps,
    split_at,
    step_bounds,
)


def read_labels(dataset: FeatureDataset) -> NDArray[np.int64]:
    """The class of each row of the training split, in the order of the row groups."""
    with reporting(dataset, "train"):
        # One file after the other: a dataset of all would look for partitions in their paths.
        tables = [read_parquet(path, ["label"]) for path in dataset.files("train")]
        labels: NDArray[np.int64] = as_numpy(pa.concat_tables(tables)["label"].combine_chunks())
        return labels


class DirichletPartition:
    """Which worker owns which rows.

    A worker's mixture follows a Dirichlet distribution with the mean of all data: its parameters are alpha times the
    number of classes times their fractions, so alpha each for classes of equal size (Hsu et al. 2019). The workers
    choose in random order, from what those before them left.

    `classes`: (num_rows,) class of each row. `group_rows`: rows of each row group.

    Examples:
        >>> partition = DirichletPartition(np.arange(12) % 3, [6, 6], world_size=4, alpha=0.1, seed=1)
        >>> partition.counts.sum(axis=1).tolist()
        [3, 3, 3, 3]
        >>> [rows.tolist() for rows in partition.rows_of_worker(0)]
        [[3, 4], [1]]
    """

    def __init__(
        self,
        classes: NDArray[np.int64],
        group_rows: Sequence[int],
        *,
        world_size: int,
        alpha: float,
        seed: int,
    ) -> None:
        if len(classes) < world_size:
            raise ShardError(
                f"{world_size} workers cannot each own some of {len(classes)} training rows. Use fewer."
            )
        self._seed = seed
        rng = random_stream(seed, "owners")
        sizes = np.diff(step_bounds(len(classes), world_size))
        amounts = _amounts(np.bincount(classes), sizes, alpha, rng)
        self.owner_of_row = np.empty(len(classes), dtype=np.int64)
        """(num_rows,) the worker that owns each row."""
        for label, of_workers in enumerate(amounts.T):
            self.owner_of_row[rng.permutation(np.flatnonzero(classes == label))] = np.repeat(
                np.arange(world_size), of_workers
            )
        self._parts = np.split(self.owner_of_row, np.cumsum(group_rows)[:-1])
        self.world_size = world_size
        self._planned: tuple[tuple[int, int], EpochPlan] | None = None

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(world_size, num_groups) number of rows of each row group that each worker owns."""
        return np.stack(
            [np.bincount(part, minlength=self.world_size) for part in self._parts], axis=1
        )

    def rows_of_worker(self, rank: int) -> list[NDArray[np.int64]]:
        """A worker's rows of each row group."""
        return [np.flatnonzero(part == rank) for part in self._parts]

    def plan(self, *, batch_size: int, epoch: int) -> EpochPlan:
        """An epoch in which each worker reads all of its rows once."""
        # Kept, since thousands of simulated workers need the same plan.
        if self._planned is None or self._planned[0] != (batch_size, epoch):
            row_ranges = [self._pieces(rank, epoch) for rank in range(self.world_size)]
            self._planned = (batch_size, epoch), plan_steps(row_ranges, batch_size)
        return self._planned[1]

    def following(self, assignment: Assignment, *, rank: int, start: int) -> Assignment:
        """A worker's own rows in place of assigned ones, and as many: from row `start` of its endless sequence.

        The sequence is that of `plan`: all of its rows in the order of the first epoch, then of the second, ...
        """
        total, stop = int(self.counts[rank].sum()), start + sum(assignment.sizes)
        first = start // total
        row_ranges: list[RowRange] = []
        later: list[int] = []
        for epoch in range(first, -(-stop // total)):
            bounds = [0, max(0, start - epoch * total), min(total, stop - epoch * total)]
            _, taken = split_at(self._pieces(rank, epoch), bounds)
            row_ranges += taken
            later += [epoch - first] * len(taken)
        return Assignment(first, row_ranges, assignment.sizes, later)

    def _pieces(self, rank: int, epoch: int) -> list[RowRange]:
        """A worker's rows, in the reading order of an epoch."""
        order = random_stream(self._seed, "own groups", rank, epoch).permutation(len(self._parts))
        counts = self.counts[rank].tolist()
        return [RowRange(group, 0, counts[group]) for group in order.tolist() if counts[group]]


def _amounts(
    counts: NDArray[np.int64], sizes: NDArray[np.int64], alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Number of rows of each class for each worker (world_size, num_classes), with sums `sizes` and `counts`."""
    left = counts.copy()
    amounts = np.zeros((len(sizes), len(counts)), dtype=np.int64)
    for rank in rng.permutation(len(sizes)):
        wanted = rng.dirichlet(alpha * len(counts) * counts / counts.sum())
        amounts[rank] = _filled(wanted, left, int(sizes[rank]))
        left -= amounts[rank]
    return amounts


def _filled(wanted: NDArray[np.float64], left: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """`size` rows in the wanted proportions, as far as there are rows left of each class.

    Examples:
        >>> _filled(np.array([0.9, 0.1, 0.0]), np.array([5, 9, 9]), 10).tolist()
        [5, 5, 0]
    """
    taken = np.zeros_like(left)
    while missing := size - int(taken.sum()):
        part = np.where(left > taken, wanted, 0.0)
        if not part.sum():
            part = (left - taken).astype(float)
        more = np.floor(missing * part / part.sum()).astype(np.int64)
        if not more.any():
            more[part.argmax()] = 1
        taken = np.minimum(left, taken + more)
    return taken
