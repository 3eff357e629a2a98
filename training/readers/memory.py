"""Rows of a split in memory, their reading orders and their reader; pyarrow reads each row group once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from features.matrices import model_inputs, required_columns
from hep_core.checked_parquet import open_parquet
from hep_core.random_streams import random_stream
from hep_core.storage import is_remote
from training.errors import TrainingError
from training.readers.batch import (
    Batch,
    BatchLayout,
    Columns,
    Rows,
    event_shape,
    reporting,
    require_no_pickled_schema,
    validation_share,
)
from training.readers.sharding import Assignment, OwnedRows, RowRange, reading_orders

ReadParts = Callable[[int], Iterator[Columns]]
"""Reads a row group, in parts."""

#: Bytes to decode at once, so that they stay in the processor's cache until they are copied.
_DECODED_BYTES: Final = 2 << 20
_READ_BYTES: Final = 1 << 20
#: Number of steps whose rows are copied together.
_STEPS_AT_ONCE: Final = 32


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """The rows of a split, in the order of the row groups.

    Step `s` is `rows.batch(order[bounds[s]:bounds[s + 1]])`, where `order` is `reading_order(assignment)`, and `bounds`
    are the sums of `assignment.sizes`: the same events in the same order as from a reader.

    Examples:
        >>> rows = MemoryRows(Rows((torch.ones(5, 3),), torch.zeros(5, dtype=torch.int64), torch.ones(5)), 1, [3, 2])
        >>> rows.reading_order(Assignment(0, [RowRange(1, 0, 2)], [1, 1])).tolist()
        [3, 4]
    """

    rows: Rows
    seed: int
    group_rows: list[int]
    mixes_groups: bool = False
    """Whether the row groups of each epoch are other rows, drawn from all; files cannot do this."""
    unread: set[int] = field(default_factory=set)
    """Row groups that are not in memory yet."""
    read: Callable[[int], int] | None = None
    """Brings a row group into memory, and returns its number; None where all are there."""

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
        """Read a whole split."""
        require_no_pickled_schema(dataset)
        loaded = cls.lazy(
            dataset, split, BatchLayout.of(dataset, inputs, dtype=dtype, device=device), seed=seed
        )
        for _ in loaded.arriving(
            [RowRange(group, 0, 0) for group in range(len(loaded.group_rows))]
        ):
            pass
        return loaded

    @classmethod
    def lazy(
        cls,
        dataset: FeatureDataset,
        split: str,
        layout: BatchLayout,
        *,
        seed: int,
        parts: ReadParts | None = None,
    ) -> Self:
        """Room for a split that `require_no_pickled_schema` has seen; each row group is read when it is first needed.

        `parts`: reads row groups; None: pyarrow.
        """
        group_rows = [group.rows for group in dataset.splits[split]]
        starts, parts = (
            [0, *accumulate(group_rows)],
            parts or partial(_arrow_parts, dataset, split, layout),
        )
        try:
            rows = layout.unfilled(starts[-1])
        except (MemoryError, torch.OutOfMemoryError) as cause:
            raise TrainingError(
                f"the {starts[-1]} rows of the {split} split do not fit into the memory of {layout.device} ({cause}). "
                f"Train with `--set train.reader=petastorm`."
            ) from cause

        def read(group: int) -> int:
            start = starts[group]
            for columns in parts(group):
                part = layout.rows(columns)
                rows.write(start, part)
                start += len(part.labels)
            return group

        return cls(rows, seed, group_rows, unread=set(range(len(group_rows))), read=read)

    def arriving(self, row_ranges: Sequence[RowRange]) -> Iterator[int]:
        """Number of rows of each piece, as soon as its row group is in memory."""
        missing = list(
            dict.fromkeys(piece.group for piece in row_ranges if piece.group in self.unread)
        )
        arriving = iter(()) if self.read is None else prefetch_one(self.read, missing)
        awaited = set(missing)
        for group, start, stop in row_ranges:
            if group in awaited:
                awaited.remove(group)
                self.unread.discard(next(arriving))
            yield stop - start

    def reading_order(
        self, assignment: Assignment, owned_rows: OwnedRows | None = None
    ) -> NDArray[np.int64]:
        """Numbers of the rows of an assignment, in reading order; `owned_rows`: see `reading_orders`."""
        orders = reading_orders(assignment, self.group_rows, owned_rows, seed=self.seed)
        parts = [
            self._starts[group] + order
            for group, order in zip(assignment.groups, orders, strict=True)
        ]
        order = np.concatenate(parts or [np.empty(0, dtype=np.int64)])
        # Rows that belong to a worker stay in their row groups.
        return (
            _mixed(len(self), self.seed, assignment.epoch)[order]
            if self.mixes_groups and owned_rows is None
            else order
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """All rows in batches of a size, in order."""
        for start in range(0, len(self), size):
            yield self.rows.batch(np.arange(start, min(start + size, len(self))))

    def __len__(self) -> int:
        return len(self.rows.labels)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *self.group_rows])[:-1]


class MemoryReader:
    """A `Reader` of rows in memory; a batch is one copy of each column.

    `owned_rows`: rows of each row group to train on; None: all.
    """

    def __init__(
        self, train: MemoryRows, val: MemoryRows, *, owned_rows: OwnedRows | None = None
    ) -> None:
        self._train, self._val, self._owned_rows = train, val, owned_rows

    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        """See `Reader`."""
        if assignment.sizes:
            order = self._train.reading_order(assignment, self._owned_rows)
            yield from _batches(self._train, assignment.row_ranges, order, assignment.sizes)

    def prefetch(self, assignment: Assignment) -> None:
        """See `Reader`; most is in memory."""

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """See `Reader`."""
        rows, has_particles = self._val.group_rows, self._val.rows.lengths is not None
        groups, sizes = validation_share(
            rows, rank=rank, world_size=world_size, has_particles=has_particles
        )
        starts = [0, *accumulate(rows)]
        if groups:
            order = np.concatenate(
                [np.arange(starts[group], starts[group + 1]) for group in groups]
            )
            yield from _batches(
                self._val, [RowRange(group, 0, rows[group]) for group in groups], order, sizes
            )


def _batches(
    memory: MemoryRows,
    row_ranges: Sequence[RowRange],
    order: NDArray[np.int64],
    sizes: Sequence[int],
) -> Iterator[Batch]:
    bounds, arrivals, there = [0, *accumulate(sizes)], memory.arriving(row_ranges), 0
    for first in range(0, len(sizes), _STEPS_AT_ONCE):
        some = sizes[first : first + _STEPS_AT_ONCE]
        start, stop = bounds[first], bounds[first + len(some)]
        while there < stop:
            there += next(arrivals)
        yield from memory.rows.batches(order[start:stop], some)


def _arrow_parts(
    dataset: FeatureDataset, split: str, layout: BatchLayout, group: int
) -> Iterator[Columns]:
    """What `features.matrices.model_inputs` makes of a row group, in parts."""
    name, expected = dataset.splits[split][group]
    path = dataset.data / name
    row_bytes = sum(
        4 * math.prod(event_shape(field, layout.max_particles)) for field in layout.fields
    )
    with (
        reporting(dataset, split, f"{path.name}: "),
        open_parquet(path, buffer_size=_READ_BYTES, pre_buffer=is_remote(path)) as file,
    ):
        if file.metadata.num_rows != expected:
            raise ValueError(f"it has {file.metadata.num_rows} rows, dataset.json says {expected}")
        at_once = max(1, _DECODED_BYTES // row_bytes)
        for part in file.iter_batches(
            at_once, columns=required_columns(layout.fields), use_threads=False
        ):
            yield model_inputs(part, layout.fields, max_particles=layout.max_particles)


def prefetch_one(work: Callable[[int], int], numbers: Sequence[int]) -> Iterator[int]:
    """Results of some work for each number; a thread begins each when the previous one is taken.

    Examples:
        >>> list(prefetch_one(lambda number: number**2, [0, 1, 2, 3]))
        [0, 1, 4, 9]
    """
    if not numbers:
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        begun = thread.submit(work, numbers[0])
        for number in numbers[1:]:
            result = begun.result()
            begun = thread.submit(work, number)
            yield result
        yield begun.result()


# Cached, since all simulated workers need the same order.
@lru_cache(maxsize=2)
def _mixed(num_rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The row at each place of the row groups of an epoch, (num_rows,)."""
    return random_stream(seed, "mixed", epoch).permutation(num_rows)
