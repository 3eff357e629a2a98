"""All rows of a split as tensors, and each rank's reading order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from training.errors import CacheError
from training.random_streams import random_stream
from training.readers.batch import Batch, BatchLayout, Rows
from training.readers.hostile import refuse_pickled_schema
from training.readers.sharding import Assignment, OwnRows, reading_orders
from training.readers.sources import ArrowSource


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """The rows of a split, in the order of the row groups.

    Step `s` is `rows.batch(order[bounds[s]:bounds[s + 1]])`, where `order` is `reading_order(assignment)`, and `bounds`
    are the sums of `assignment.sizes`: the same events in the same order as from a reader.

    Examples:
        >>> rows = MemoryRows(Rows((torch.ones(5, 3),), torch.zeros(5, dtype=torch.int64), torch.ones(5)), 1, [3, 2])
        >>> from training.readers.sharding import Piece
        >>> rows.reading_order(Assignment(0, [Piece(1, 0, 2)], [1, 1])).tolist()
        [3, 4]
    """

    rows: Rows
    seed: int
    """Seed of the run."""
    group_rows: list[int]
    """Rows of each row group."""
    mixes_groups: bool = False
    """Whether the row groups of each epoch are other rows, drawn from all; files cannot do this."""

    @classmethod
    def load(
        cls,
        dataset: FeatureDataset,
        split: str,
        inputs: Sequence[str],
        *,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Read a whole split.

        Args:
            dataset: The features dataset.
            split: Name of the split.
            inputs: Columns that the model takes.
            dtype: Floating point type of the tensors.
            seed: Seed of the run.
            device: Device of the tensors.

        Raises:
            HostileDatasetError: The dataset carries petastorm's pickled schema.
            DamagedDatasetError: A file is missing or cannot be read.
            CacheError: The split does not fit into memory.
        """
        refuse_pickled_schema(dataset)
        layout = BatchLayout.of(dataset, inputs, dtype=dtype, device=device)
        loaded = cls.unfilled(dataset, split, layout, seed=seed)
        groups = range(len(loaded.group_rows))
        for group, columns in zip(groups, ArrowSource(dataset, layout.fields).row_groups(split, groups), strict=True):
            loaded.fill(group, layout.rows(columns))
        return loaded

    @classmethod
    def unfilled(cls, dataset: FeatureDataset, split: str, layout: BatchLayout, *, seed: int) -> Self:
        """Unwritten memory for a split; in host memory only filled rows take memory.

        Raises:
            CacheError: The split does not fit into memory.
        """
        try:
            room = layout.unfilled(dataset.num_rows(split))
        except (MemoryError, torch.OutOfMemoryError) as cause:
            raise CacheError(
                f"the {dataset.num_rows(split)} rows of the {split} split do not fit into the memory of "
                f"{layout.device} ({cause}). Train with `--set train.cache=none`."
            ) from cause
        return cls(room, seed, [group.rows for group in dataset.splits[split]])

    def fill(self, group: int, part: Rows) -> None:
        """Write the rows of a row group to their position."""
        self.rows.write(int(self._starts[group]), part)

    def reading_order(self, assignment: Assignment, own: OwnRows | None = None) -> NDArray[np.int64]:
        """Numbers of the rows of an assignment, in reading order; `own`: see `reading_orders`."""
        orders = reading_orders(assignment, self.group_rows, own, seed=self.seed)
        parts = [self._starts[group] + order for group, order in zip(assignment.groups, orders, strict=True)]
        order = np.concatenate(parts or [np.empty(0, dtype=np.int64)])
        # Rows that belong to a worker stay in their row groups.
        return _mixed(len(self), self.seed, assignment.epoch)[order] if self.mixes_groups and own is None else order

    def in_order(self, groups: Sequence[int]) -> NDArray[np.int64]:
        """Numbers of the rows of some row groups, in file order."""
        starts = self._starts
        parts = [np.arange(starts[group], starts[group] + self.group_rows[group]) for group in groups]
        return np.concatenate(parts)

    def batches(self, size: int, *, part: int = 0, num_parts: int = 1) -> Iterator[Batch]:
        """All rows in batches of a size, in order; of several parts, which take turns, the batches of one."""
        for start in range(part * size, len(self), num_parts * size):
            yield self.rows.batch(np.arange(start, min(start + size, len(self))))

    def __len__(self) -> int:
        return len(self.rows.labels)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """First row of each row group."""
        return np.cumsum([0, *self.group_rows])[:-1]


# Cached, since all simulated workers need the same order.
@lru_cache(maxsize=2)
def _mixed(num_rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The row at each place of the row groups of an epoch, (num_rows,)."""
    return random_stream(seed, "mixed", epoch).permutation(num_rows)
