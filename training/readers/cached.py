"""Batches from row groups that stay in memory after their first read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from training.readers.batch import Batch
from training.readers.file_reader import FileReader
from training.readers.memory_rows import MemoryRows
from training.readers.sharding import Assignment, Piece

#: Number of steps whose rows are copied together.
_STEPS_AT_ONCE: Final = 32


@dataclass(eq=False)
class CachedReader(FileReader):
    """A `FileReader` that reads a row group at its first use and keeps it; a batch is one copy per column."""

    _memory: dict[str, MemoryRows] = field(default_factory=dict, init=False)
    _there: dict[str, set[int]] = field(default_factory=dict, init=False)

    @override
    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        if assignment.sizes:
            order = self._memory_of("train").reading_order(assignment, self.own)
            yield from self._batches("train", assignment.pieces, order, assignment.sizes)

    @override
    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        memory = self._memory_of("val")
        rows = memory.group_rows
        pieces = [Piece(group, 0, rows[group]) for group in range(rank, len(rows), world_size)]
        if not pieces:
            return
        sizes = [size for piece in pieces for size in self.layout.val_sizes(rows[piece.group])]
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
        arriving = zip(missing, self.source.row_groups(split, missing), strict=True)
        missing_now = set(missing)
        for group, start, stop in pieces:
            if group in missing_now:
                _, columns = next(arriving)
                memory.fill(group, self.layout.rows(columns))
                there.add(group)
            yield stop - start

    def _memory_of(self, split: str) -> MemoryRows:
        if split not in self._memory:
            self._memory[split] = MemoryRows.unfilled(self.dataset, split, self.layout, seed=self.seed)
            self._there[split] = set()
        return self._memory[split]
