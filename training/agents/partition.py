"""The part of the training split that belongs to one agent: pure arithmetic, the same on every host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from training.random_streams import random_stream
from training.readers.sharding import Piece, Share, step_bounds


class Partition:
    """Some row groups, read again and again, in another order in every pass.

    Args:
        rows: Rows of each row group of the training split.
        index: Number of the partition.
        count: Number of partitions, at most that of the row groups.
        batch_size: Highest number of rows of a step.
        seed: Seed of the run.

    Examples:
        >>> parts = [Partition([5, 5, 5], index=index, count=2, batch_size=4, seed=1) for index in (0, 1)]
        >>> [part.num_rows for part in parts]
        [10, 5]
        >>> share = parts[1].share(0, 3)
        >>> share.sizes, [piece[1:] for piece in share.pieces]
        ([2], [(3, 5)])
    """

    def __init__(self, rows: Sequence[int], *, index: int, count: int, batch_size: int, seed: int) -> None:
        order = random_stream(seed, "partitions").permutation(len(rows))
        self._groups = order[index::count].tolist()
        self._rows = rows
        self._batch_size, self._seed, self._index = batch_size, seed, index
        self.num_rows = sum(rows[group] for group in self._groups)

    def share(self, number: int, first: int = 0, num_rows: int | None = None) -> Share:
        """Rows of a pass in reading order.

        Args:
            number: Number of the pass.
            first: Number of its rows to skip.
            num_rows: Number of rows; None for all that are left.
        """
        stop = self.num_rows if num_rows is None else min(first + num_rows, self.num_rows)
        pieces, row = [], 0
        stream = random_stream(self._seed, "pass", self._index, number)
        for group in stream.permutation(self._groups).tolist():
            begin, end = max(first - row, 0), min(stop - row, self._rows[group])
            if begin < end:
                pieces.append(Piece(group, begin, end))
            row += self._rows[group]
        sizes = np.diff(step_bounds(stop - first, -(-(stop - first) // self._batch_size))).tolist()
        return Share(number, pieces, sizes)
