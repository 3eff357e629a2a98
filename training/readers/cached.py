"""Batches from row groups that stay in memory after their first read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from features.dataset import FeatureDataset
from training.readers.batch import Batch, BatchLayout
from training.readers.memory_rows import MemoryRows
from training.readers.reader import Reader
from training.readers.sharding import EpochPlan, share_of
from training.readers.sources import Source

#: Number of steps whose rows are copied together.
_STEPS_AT_ONCE: Final = 32


class CachedReader(Reader):
    """A `Reader` that reads a row group at its first use and keeps it; a batch is one copy per column.

    Args:
        dataset: The features dataset.
        source: Reads row groups.
        layout: Columns of the model, and the type and device of the tensors.
        seed: Seed of the run.
    """

    def __init__(self, dataset: FeatureDataset, source: Source, layout: BatchLayout, *, seed: int) -> None:
        self._dataset = dataset
        self._source = source
        self._layout = layout
        self._seed = seed
        self._memory: dict[str, MemoryRows] = {}
        self._there: dict[str, set[int]] = {}

    @property
    def cached_bytes(self) -> int:
        """Size of the row groups in memory."""
        return sum(
            memory.rows.num_bytes // max(1, len(memory)) * sum(memory.group_rows[group] for group in self._there[split])
            for split, memory in self._memory.items()
        )

    @override
    def train_batches(self, plan: EpochPlan, *, rank: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        memory = self._memory_of("train")
        share = share_of(plan, memory.group_rows, rank=rank, first_step=first_step)
        if not share.sizes:
            return
        order = memory.reading_order(share.groups, epoch=epoch)[share.skipped :]
        yield from self._batches("train", share.groups, order, share.sizes, skipped=share.skipped)

    @override
    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        memory = self._memory_of("val")
        groups = list(range(rank, len(memory.group_rows), world_size))
        if not groups:
            return
        sizes = [size for group in groups for size in self._layout.val_sizes(memory.group_rows[group])]
        yield from self._batches("val", groups, memory.in_order(groups), sizes)

    def _batches(
        self, split: str, groups: Sequence[int], order: NDArray[np.int64], sizes: Sequence[int], *, skipped: int = 0
    ) -> Iterator[Batch]:
        """Batches of the given sizes from the rows in `order`: the rows of `groups` without the first `skipped`."""
        rows = self._memory_of(split).rows
        bounds = list(accumulate(sizes, initial=0))
        arrivals = self._arrivals(split, groups)
        there = -skipped
        for first in range(0, len(sizes), _STEPS_AT_ONCE):
            some = sizes[first : first + _STEPS_AT_ONCE]
            start, stop = bounds[first], bounds[first + len(some)]
            while there < stop:
                there += next(arrivals)
            yield from rows.batches(order[start:stop], some)

    def _arrivals(self, split: str, groups: Sequence[int]) -> Iterator[int]:
        """Number of rows of each row group, as soon as it is in memory."""
        memory, there = self._memory[split], self._there[split]
        missing = [group for group in groups if group not in there]
        arriving = zip(missing, self._source.row_groups(split, missing), strict=True)
        missing_now = set(missing)
        for group in groups:
            if group in missing_now:
                _, columns = next(arriving)
                memory.fill(group, self._layout.rows(columns))
                there.add(group)
            yield memory.group_rows[group]

    def _memory_of(self, split: str) -> MemoryRows:
        if split not in self._memory:
            self._memory[split] = MemoryRows.unfilled(self._dataset, split, self._layout, seed=self._seed)
            self._there[split] = set()
        return self._memory[split]
