"""Batches from rows that are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

from typing_extensions import override

from training.readers.batch import Batch
from training.readers.memory_rows import MemoryRows
from training.readers.reader import Reader
from training.readers.sharding import Assignment, OwnRows

_VAL_ROWS: Final = 1024


class MemoryReader(Reader):
    """A `Reader` of rows in memory.

    Args:
        train: Rows of the training split.
        val: Rows of the validation split.
        own: Rows of each row group to train on; None: all.
    """

    def __init__(self, train: MemoryRows, val: MemoryRows, *, own: OwnRows | None = None) -> None:
        self._train, self._val, self._own = train, val, own

    @override
    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        if assignment.sizes:
            order = self._train.reading_order(assignment, self._own)
            for start, stop in pairwise(accumulate(assignment.sizes, initial=0)):
                yield self._train.rows.batch(order[start:stop])

    @override
    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        return self._val.batches(_VAL_ROWS, part=rank, num_parts=world_size)
