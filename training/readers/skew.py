"""Unequal data: each training event belongs to one worker, and the workers' class mixtures differ.

All workers own the same number of events, so that each event is read once in an epoch of equal
parts. The row groups are mixed, so a worker owns some rows of every row group. It reads all row
groups in each epoch (once with `reader: arrow`), so the data are read as many times as there are
workers.
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
from training.readers.batch import translate_read_errors
from training.readers.sharding import (
    Assignment,
    EpochPlan,
    RowRange,
    plan_steps,
    split_at,
    step_bounds,
)


def read_labels(dataset: FeatureDataset) -> NDArray[np.int64]:
    """Read the class of each row of the training split, (num_rows,), in row-group order."""
    with translate_read_errors(dataset, "train"):
        # Each file is read alone, since pyarrow would look for partitions in the paths of many.
        tables = [read_parquet(path, ["label"]) for path in dataset.files("train")]
        labels: NDArray[np.int64] = as_numpy(pa.concat_tables(tables)["label"].combine_chunks())
        return labels


class DirichletPartition:
    """A division of the rows among workers, with random class mixtures.

    A worker's mixture follows a Dirichlet distribution whose mean is the mixture of all rows. The
    parameter of a class is alpha times the number of classes times the fraction of the class: alpha
    for classes of equal size (Hsu et al. 2019). The smaller alpha, the more the mixtures differ.
    The workers take rows in random order, each from those that are left.

    `classes`: (num_rows,) class of each row. `group_rows`: number of rows of each row group.

    Examples:
        >>> classes = np.arange(12) % 3
        >>> partition = DirichletPartition(classes, [6, 6], world_size=4, alpha=0.1, seed=1)
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
                f"{world_size} workers cannot each own some of {len(classes)} training rows. "
                f"Use fewer."
            )
        self._seed = seed
        self.world_size = world_size
        rng = random_stream(seed, "owners")
        share_sizes = np.diff(step_bounds(len(classes), world_size))
        class_counts = _draw_class_counts(np.bincount(classes), share_sizes, alpha, rng)
        self.owner_of_row = np.empty(len(classes), dtype=np.int64)
        """(num_rows,) the worker that owns each row."""
        # The rows of a class are shuffled, then dealt out as consecutive parts.
        for label, rows_per_worker in enumerate(class_counts.T):
            rows = rng.permutation(np.flatnonzero(classes == label))
            self.owner_of_row[rows] = np.repeat(np.arange(world_size), rows_per_worker)
        self._owners_by_group = np.split(self.owner_of_row, np.cumsum(group_rows)[:-1])
        self._cached_plan: tuple[tuple[int, int], EpochPlan] | None = None
        """The last plan, with its batch size and epoch."""

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(world_size, num_groups) number of rows of each row group that each worker owns."""
        counts = [
            np.bincount(owners, minlength=self.world_size) for owners in self._owners_by_group
        ]
        return np.stack(counts, axis=1)

    def rows_of_worker(self, rank: int) -> list[NDArray[np.int64]]:
        """Return the numbers of a worker's rows in each row group."""
        return [np.flatnonzero(owners == rank) for owners in self._owners_by_group]

    def plan(self, *, batch_size: int, epoch: int) -> EpochPlan:
        """Plan an epoch in which each worker reads all of its rows once."""
        # The plan is cached, since thousands of simulated workers need the same.
        key = (batch_size, epoch)
        if self._cached_plan is None or self._cached_plan[0] != key:
            row_ranges = [self._order_rows(rank, epoch) for rank in range(self.world_size)]
            self._cached_plan = key, plan_steps(row_ranges, batch_size)
        return self._cached_plan[1]

    def replace_rows(self, assignment: Assignment, *, rank: int, start: int) -> Assignment:
        """Replace the rows of an assignment by as many rows that the worker owns.

        A worker reads its rows as an endless sequence: all of them in the order of the first epoch
        of `plan`, then in that of the second, and so on. `start` is the place in this sequence
        of the first row to take. The steps of the assignment keep their sizes.
        """
        rows_per_epoch = int(self.counts[rank].sum())
        stop = start + sum(assignment.sizes)
        first_epoch = start // rows_per_epoch
        row_ranges: list[RowRange] = []
        epochs_later: list[int] = []
        epoch_start = first_epoch * rows_per_epoch
        # The last epoch is the quotient rounded up.
        for epoch in range(first_epoch, -(-stop // rows_per_epoch)):
            bounds = [0, max(0, start - epoch_start), min(rows_per_epoch, stop - epoch_start)]
            _, epoch_ranges = split_at(self._order_rows(rank, epoch), bounds)
            row_ranges += epoch_ranges
            epochs_later += [epoch - first_epoch] * len(epoch_ranges)
            epoch_start += rows_per_epoch
        return Assignment(first_epoch, row_ranges, assignment.sizes, epochs_later)

    def _order_rows(self, rank: int, epoch: int) -> list[RowRange]:
        """Return all rows of a worker as ranges, in the reading order of an epoch.

        The ranges count only the rows that it owns; row groups without any are left out.
        """
        stream = random_stream(self._seed, "own groups", rank, epoch)
        order = stream.permutation(len(self._owners_by_group)).tolist()
        counts = self.counts[rank].tolist()
        return [RowRange(group, 0, counts[group]) for group in order if counts[group]]


def _draw_class_counts(
    class_sizes: NDArray[np.int64],
    share_sizes: NDArray[np.int64],
    alpha: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw the number of rows of each class for each worker, (world_size, num_classes).

    The sums are `share_sizes` over the classes, and `class_sizes` over the workers. In random
    order, each worker draws a mixture and fills its share from the rows that are left.
    """
    remaining = class_sizes.copy()
    counts = np.zeros((len(share_sizes), len(class_sizes)), dtype=np.int64)
    concentration = alpha * len(class_sizes) * class_sizes / class_sizes.sum()
    for rank in rng.permutation(len(share_sizes)):
        mixture = rng.dirichlet(concentration)
        counts[rank] = _fill_share(mixture, remaining, int(share_sizes[rank]))
        remaining -= counts[rank]
    return counts


def _fill_share(
    mixture: NDArray[np.float64], available: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Return the numbers of rows of each class of a share of `size` rows.

    They have the proportions of the mixture, as long as rows of each class are available. Where a
    class runs out, the others fill the share in their proportions to each other.

    Examples:
        >>> _fill_share(np.array([0.9, 0.1, 0.0]), np.array([5, 9, 9]), 10).tolist()
        [5, 5, 0]
    """
    counts = np.zeros_like(available)
    while missing := size - int(counts.sum()):
        proportions = np.where(available > counts, mixture, 0.0)
        # If the mixture has only classes that ran out, all rows that are left count alike.
        if not proportions.sum():
            proportions = (available - counts).astype(float)
        added = np.floor(missing * proportions / proportions.sum()).astype(np.int64)
        # If all parts round down to 0, the class of the largest part gets one row.
        if not added.any():
            added[proportions.argmax()] = 1
        counts = np.minimum(available, counts + added)
    return counts
