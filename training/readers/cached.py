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
from training.readers.sharding import OwnRows, Piece, Share
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
        own: Rows of each row group to train on; None: all.
    """

    def __init__(
        self, dataset: FeatureDataset, source: Source, layout: BatchLayout, *, seed: int, own: OwnRows | None = None
    ) -> None:
        self._dataset = dataset
        self._source = source
        self._layout = layout
        self._seed, self._own = seed, own
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
    def train_batches(self, share: Share) -> Iterator[Batch]:
        if share.sizes:
            order = self._memory_of("train").reading_order(share, self._own)
            yield from self._batches("train", share.pieces, order, share.sizes)

    def prefetch(self, share: Share) -> None:
        """Do nothing: most row groups are in memory."""

    @override
    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        memory = self._memory_of("val")
        rows = memory.group_rows
        pieces = [Piece(group, 0, rows[group]) for group in range(rank, len(rows), world_size)]
        if not pieces:
            return
        sizes = [size for piece in pieces for size in self._layout.val_sizes(rows[piece.group])]
        yield from self._batches("val", pieces, memory.in_order([piece.group for piece in pieces]), sizes)

    def _batches(
        self, split: str, pieces: Sequence[Piece], order: NDArray[np.int64], sizes: Sequence[int]
    ) -> Iterator[Batch]:
        """Batches of the given sizes from the rows in `order`, which are those of the pieces."""
        rows = self._memory_of(split).rows
        bounds = list(accumulate(sizes, initial=0))
        arrivals = self._arrivals(split, pieces)
        there = 0
        for first in range(0, len(sizes), _STEPS_AT_ONCE):
            some = sizes[first : first + _STEPS_AT_ONCE]
            start, stop = bounds[first], bounds[first + len(some)]
            while there < stop:
                there += next(arrivals)
            yield from rows.batches(order[start:stop], some)

    def _arrivals(self, split: str, pieces: Sequence[Piece]) -> Iterator[int]:
        """Number of rows of each piece, as soon as its row group is in memory."""
        memory, there = self._memory[split], self._there[split]
        missing = [piece.group for piece in pieces if piece.group not in there]
        arriving = zip(missing, self._source.row_groups(split, missing), strict=True)
        missing_now = set(missing)
        for group, start, stop in pieces:
            if group in missing_now:
                _, columns = next(arriving)
                memory.fill(group, self._layout.rows(columns))
                there.add(group)
            yield stop - start

    def _memory_of(self, split: str) -> MemoryRows:
        if split not in self._memory:
            self._memory[split] = MemoryRows.unfilled(self._dataset, split, self._layout, seed=self._seed)
            self._there[split] = set()
        return self._memory[split]
