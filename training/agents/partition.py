"""The part of the training split that belongs to one agent: pure arithmetic, the same on every host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from training.random_streams import random_stream
from training.readers.sharding import Piece, Share, cut, rows_in, step_bounds


class Partition:
    """As many rows as any other agent has, give or take one, read again and again, in another order in every pass.

    Args:
        rows: Rows of each row group of the training split.
        index: Number of the partition.
        count: Number of partitions.
        batch_size: Highest number of rows of a step.
        seed: Seed of the run.

    Examples:
        >>> parts = [Partition([5, 5, 5], index=index, count=2, batch_size=4, seed=1) for index in (0, 1)]
        >>> [part.num_rows for part in parts]
        [7, 8]
        >>> share = parts[1].share(0, 3)
        >>> share.sizes, sum(stop - start for _, start, stop in share.pieces)
        ([2, 3], 5)
    """

    def __init__(self, rows: Sequence[int], *, index: int, count: int, batch_size: int, seed: int) -> None:
        order = random_stream(seed, "partitions").permutation(len(rows))
        bounds = step_bounds(sum(rows), count).tolist()
        self._pieces = cut([Piece(group, 0, rows[group]) for group in order.tolist()], bounds)[index]
        self._batch_size, self._seed, self._index = batch_size, seed, index
        self.num_rows = rows_in(self._pieces)

    def share(self, number: int, first: int = 0, num_rows: int | None = None) -> Share:
        """Rows of a pass in reading order.

        Args:
            number: Number of the pass.
            first: Number of its rows to skip.
            num_rows: Number of rows; None for all that are left.
        """
        stop = self.num_rows if num_rows is None else min(first + num_rows, self.num_rows)
        order = random_stream(self._seed, "pass", self._index, number).permutation(len(self._pieces))
        _, pieces = cut([self._pieces[place] for place in order], [0, first, stop])
        sizes = np.diff(step_bounds(stop - first, -(-(stop - first) // self._batch_size))).tolist()
        return Share(number, pieces, sizes)
