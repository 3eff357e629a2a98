"""Batches from row groups that are read again in every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from training.readers.batch import Batch, Rows
from training.readers.file_reader import FileReader
from training.readers.sharding import Assignment, reading_orders


@dataclass(eq=False)
class StreamedReader(FileReader):
    """A `FileReader` that keeps only the current row group in memory, and the one that is read ahead."""

    _kept: tuple[int, Rows] | None = field(default=None, init=False)
    """The last row group of the training split that was read: the next work unit is often another part of it."""
    _thread: ThreadPoolExecutor | None = field(default=None, init=False)
    _ahead: tuple[Assignment, Future[Rows], Iterator[Rows]] | None = field(default=None, init=False)

    @override
    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        if not assignment.pieces:
            return self.layout.unfilled(0).batches(np.arange(0), assignment.sizes)
        arriving = self._train_groups(assignment.groups)
        if self._ahead is not None and self._ahead[0] == assignment:
            _, first, arriving = self._ahead
            self._ahead = None
            arriving = _behind(first, arriving)
        orders = reading_orders(assignment, self._rows("train"), self.own, seed=self.seed)
        return deal(zip(arriving, orders, strict=True), assignment.sizes)

    @override
    def prefetch(self, assignment: Assignment) -> None:
        """Read the first row group in a thread."""
        arriving = self._train_groups(assignment.groups)
        self._thread = self._thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        self._ahead = (assignment, self._thread.submit(next, arriving), arriving)

    @override
    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        rows = self._rows("val")
        groups = list(range(rank, len(rows), world_size))
        sizes = [size for group in groups for size in self.layout.val_sizes(rows[group])]
        orders = (np.arange(rows[group]) for group in groups)
        yield from deal(zip(self._row_groups("val", groups), orders, strict=True), sizes)

    def _rows(self, split: str) -> list[int]:
        return [group.rows for group in self.dataset.splits[split]]

    def _train_groups(self, groups: Sequence[int]) -> Iterator[Rows]:
        kept = self._kept
        if kept is not None and [kept[0]] == list(groups[:1]):
            yield kept[1]
            groups = groups[1:]
        for group, rows in zip(groups, self._row_groups("train", groups), strict=True):
            self._kept = group, rows
            yield rows

    def _row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Rows]:
        return map(self.layout.rows, self.source.row_groups(split, groups))


def _behind(first: Future[Rows], rest: Iterator[Rows]) -> Iterator[Rows]:
    """The row group that a thread reads, and then the others."""
    yield first.result()
    yield from rest


def deal(pieces: Iterator[tuple[Rows, NDArray[np.int64]]], sizes: Sequence[int]) -> Iterator[Batch]:
    """Batches of given sizes from a stream of row groups.

    The next row group is requested only after the last use of the previous one.

    Args:
        pieces: Rows of each row group with their reading order.
        sizes: Number of rows of each batch; their sum is the number of all rows.

    Examples:
        >>> import torch
        >>> groups = [Rows((), torch.tensor(labels), torch.ones(3)) for labels in ([0, 1, 2], [3, 4, 5])]
        >>> stream = ((rows, np.array([2, 0, 1])) for rows in groups)
        >>> [batch.labels.tolist() for batch in deal(stream, [1, 3, 2])]
        [[2], [0, 1, 5], [3, 4]]
    """
    bounds = np.cumsum([0, *sizes])
    step = 0
    parts: list[Rows] = []
    missing = 0
    for rows, order in pieces:
        start = min(missing, len(order))
        if parts:
            parts.append(rows.copy(order[:start]))
            missing -= start
            if missing:
                continue
            yield Rows.joined(parts).batch(np.arange(sizes[step]))
            parts.clear()
            step += 1
        # Steps that this row group completes.
        last = int(np.searchsorted(bounds, bounds[step] + len(order) - start, side="right")) - 1
        stop = start + int(bounds[last] - bounds[step])
        yield from rows.batches(order[start:stop], sizes[step:last])
        step = last
        if stop < len(order):
            parts.append(rows.copy(order[stop:]))
            missing = sizes[step] - (len(order) - stop)
