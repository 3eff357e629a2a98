"""Rows of a split in memory, their reading orders and their reader; each row group is read once."""

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
    require_no_pickled_schema,
    translate_read_errors,
    validation_share,
)
from training.readers.sharding import Assignment, OwnedRows, RowRange, reading_orders

ReadGroup = Callable[[int], Iterator[Columns]]
"""Reads the row group of a number; yields parts of it with some rows each."""

#: Bytes to decode at once, so that they stay in the processor's cache until they are copied.
_DECODED_BYTES: Final = 2 << 20
#: Size of the buffer of a file.
_READ_BYTES: Final = 1 << 20
#: Number of steps whose rows are copied together.
_STEPS_AT_ONCE: Final = 32


@dataclass(frozen=True, eq=False)
class MemoryRows:
    """The rows of a split, in the order of the row groups.

    Step `s` is `rows.batch(order[bounds[s]:bounds[s + 1]])`, where `order` is
    `reading_order(assignment)`, and `bounds` are the sums of `assignment.sizes`. These are the same
    events in the same order as from a reader.

    Examples:
        >>> labels = torch.zeros(5, dtype=torch.int64)
        >>> rows = MemoryRows(Rows((torch.ones(5, 3),), labels, torch.ones(5)), 1, [3, 2])
        >>> rows.reading_order(Assignment(0, [RowRange(1, 0, 2)], [1, 1])).tolist()
        [3, 4]
    """

    rows: Rows
    seed: int
    group_rows: list[int]
    """Number of rows of each row group."""
    mixes_groups: bool = False
    """Whether the rows are mixed over all row groups in each epoch, which files cannot do."""
    unread: set[int] = field(default_factory=set)
    """Row groups that are not in memory yet."""
    read_group: Callable[[int], int] | None = None
    """Reads a row group into memory, and returns its number; None if all are in memory."""

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
        spectators: Sequence[str] = (),
    ) -> Self:
        """Read a whole split; the arguments are those of `training.readers.reader.open_reader`."""
        require_no_pickled_schema(dataset)
        layout = BatchLayout.for_inputs(
            dataset, inputs, dtype=dtype, device=device, spectators=spectators
        )
        memory = cls.lazy(dataset, split, layout, seed=seed)
        # Ranges of no rows still make their row groups be read.
        all_groups = [RowRange(group, 0, 0) for group in range(len(memory.group_rows))]
        for _ in memory.wait_for_ranges(all_groups):
            pass
        return memory

    @classmethod
    def lazy(
        cls,
        dataset: FeatureDataset,
        split: str,
        layout: BatchLayout,
        *,
        seed: int,
        read_group: ReadGroup | None = None,
    ) -> Self:
        """Allocate memory for a split, into which each row group is read when first needed.

        `dataset`: has no pickled schema. `read_group`: reads row groups; None: pyarrow.

        Raises:
            TrainingError: The split does not fit into memory.
        """
        group_rows = [group.rows for group in dataset.splits[split]]
        starts = [0, *accumulate(group_rows)]
        read_columns = read_group or partial(_read_with_arrow, dataset, split, layout)
        try:
            rows = layout.allocate(starts[-1])
        except (MemoryError, torch.OutOfMemoryError) as cause:
            raise TrainingError(
                f"the {starts[-1]} rows of the {split} split do not fit into the memory of "
                f"{layout.device} ({cause}). Train with `--set train.reader=petastorm`."
            ) from cause

        def read_into_memory(group: int) -> int:
            start = starts[group]
            for columns in read_columns(group):
                new_rows = layout.rows(columns)
                rows.write(start, new_rows)
                start += len(new_rows.labels)
            return group

        unread = set(range(len(group_rows)))
        return cls(rows, seed, group_rows, unread=unread, read_group=read_into_memory)

    def wait_for_ranges(self, row_ranges: Sequence[RowRange]) -> Iterator[int]:
        """Yield the number of rows of each range, as soon as its row group is in memory.

        Row groups that are missing are read in the order of the ranges, by a thread that is one
        row group ahead of the caller. They are removed from `unread`.
        """
        # The keys of a dict are unique and hold the order.
        missing = list(
            dict.fromkeys(rows.group for rows in row_ranges if rows.group in self.unread)
        )
        read_groups = (
            iter(()) if self.read_group is None else prefetch_one(self.read_group, missing)
        )
        awaited = set(missing)
        for group, start, stop in row_ranges:
            if group in awaited:
                awaited.remove(group)
                self.unread.discard(next(read_groups))
            yield stop - start

    def reading_order(
        self, assignment: Assignment, owned_rows: OwnedRows | None = None
    ) -> NDArray[np.int64]:
        """Return the numbers of the rows of an assignment, (num_rows,), in reading order.

        The numbers count all rows of the split, over its row groups. `owned_rows`: see
        `reading_orders`.
        """
        orders = reading_orders(assignment, self.group_rows, owned_rows, seed=self.seed)
        orders_in_split = [
            self._group_starts[group] + order
            for group, order in zip(assignment.groups, orders, strict=True)
        ]
        if not orders_in_split:
            return np.empty(0, dtype=np.int64)
        order = np.concatenate(orders_in_split)
        # The rows are mixed over the split, but not where each row belongs to one worker.
        if self.mixes_groups and owned_rows is None:
            order = _mixed_rows(len(self), self.seed, assignment.epoch)[order]
        return order

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all rows in batches of a size, in order; the last one may be smaller."""
        for start in range(0, len(self), size):
            yield self.rows.batch(np.arange(start, min(start + size, len(self))))

    def __len__(self) -> int:
        return len(self.rows.labels)

    @cached_property
    def _group_starts(self) -> NDArray[np.int64]:
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
            yield from _copy_batches(self._train, assignment.row_ranges, order, assignment.sizes)

    def prefetch(self, assignment: Assignment) -> None:
        """See `Reader`; most rows are in memory."""

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """See `Reader`."""
        group_rows = self._val.group_rows
        has_particles = self._val.rows.lengths is not None
        groups, sizes = validation_share(
            group_rows, rank=rank, world_size=world_size, has_particles=has_particles
        )
        if groups:
            starts = [0, *accumulate(group_rows)]
            order = np.concatenate(
                [np.arange(starts[group], starts[group + 1]) for group in groups]
            )
            row_ranges = [RowRange(group, 0, group_rows[group]) for group in groups]
            yield from _copy_batches(self._val, row_ranges, order, sizes)


def _copy_batches(
    memory: MemoryRows,
    row_ranges: Sequence[RowRange],
    order: NDArray[np.int64],
    sizes: Sequence[int],
) -> Iterator[Batch]:
    """Yield batches of these sizes, as soon as their row groups are in memory.

    The rows of up to 32 batches are selected together.

    Args:
        memory: The rows of the split.
        row_ranges: The ranges of the rows, in reading order.
        order: Numbers of the rows, in reading order.
        sizes: Number of rows of each batch.
    """
    bounds = [0, *accumulate(sizes)]
    # Each item is a number of rows that have come into memory, in reading order.
    arriving_rows = memory.wait_for_ranges(row_ranges)
    num_in_memory = 0
    for first in range(0, len(sizes), _STEPS_AT_ONCE):
        step_sizes = sizes[first : first + _STEPS_AT_ONCE]
        start, stop = bounds[first], bounds[first + len(step_sizes)]
        while num_in_memory < stop:
            num_in_memory += next(arriving_rows)
        yield from memory.rows.batches(order[start:stop], step_sizes)


def _read_with_arrow(
    dataset: FeatureDataset, split: str, layout: BatchLayout, group: int
) -> Iterator[Columns]:
    """Read the model inputs of a row group by pyarrow, in parts that fit into the cache.

    Raises:
        DamagedDatasetError: The file cannot be read, or has another number of rows than listed.
    """
    name, expected_rows = dataset.splits[split][group]
    path = dataset.data / name
    numbers_per_row = [
        math.prod(event_shape(column, layout.max_particles)) for column in layout.fields
    ]
    # Most numbers have 4 bytes.
    rows_at_once = max(1, _DECODED_BYTES // (4 * sum(numbers_per_row)))
    with (
        translate_read_errors(dataset, split, f"{path.name}: "),
        open_parquet(path, buffer_size=_READ_BYTES, pre_buffer=is_remote(path)) as file,
    ):
        num_rows = file.metadata.num_rows
        if num_rows != expected_rows:
            raise ValueError(f"it has {num_rows} rows, dataset.json says {expected_rows}")
        parquet_columns = required_columns(layout.fields)
        for table in file.iter_batches(rows_at_once, columns=parquet_columns, use_threads=False):
            yield model_inputs(table, layout.fields, max_particles=layout.max_particles)


def prefetch_one(read: Callable[[int], int], numbers: Sequence[int]) -> Iterator[int]:
    """Yield the results of a function of each number, while a thread computes the next one.

    Examples:
        >>> list(prefetch_one(lambda number: number**2, [0, 1, 2, 3]))
        [0, 1, 4, 9]
    """
    if not numbers:
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        pending = thread.submit(read, numbers[0])
        for next_number in numbers[1:]:
            result = pending.result()
            # The next call begins before this result is used.
            pending = thread.submit(read, next_number)
            yield result
        yield pending.result()


# Cached, since all simulated workers need the same order.
@lru_cache(maxsize=2)
def _mixed_rows(num_rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a random permutation of all rows for an epoch, (num_rows,)."""
    return random_stream(seed, "mixed", epoch).permutation(num_rows)
