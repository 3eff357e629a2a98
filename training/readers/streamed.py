"""Batches from row groups that petastorm, the reference reader, reads again in every epoch."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Final
from weakref import WeakSet

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from features.columns import INPUT_COLUMNS
from features.dataset import FeatureDataset
from features.matrices import model_inputs, required_columns
from features.schema import features_schema
from hep_core.storage import path_to_fs
from training.readers.batch import (
    Batch,
    BatchLayout,
    Columns,
    Rows,
    event_shape,
    reporting,
    validation_share,
)
from training.readers.petastorm_compat import TransformSpec, make_batch_reader
from training.readers.sharding import Assignment, OwnedRows, reading_orders

RowGroups = Callable[[str, Sequence[int]], Iterator[Columns]]
"""Reads the given row groups of a split, in the given order; each is valid until the next one is requested."""

#: Number of further readers for a row group that petastorm does not deliver.
_TRIES: Final = 3

_OPEN_READERS: Final[WeakSet[Any]] = WeakSet()


class StreamedReader:
    """A `Reader` that keeps only the current row group in memory, and the one that is read ahead.

    `dataset`: checked by `require_no_pickled_schema`. `row_groups`: reads row groups; None: petastorm.
    """

    def __init__(
        self,
        dataset: FeatureDataset,
        layout: BatchLayout,
        *,
        seed: int,
        owned_rows: OwnedRows | None = None,
        row_groups: RowGroups | None = None,
    ) -> None:
        self._layout, self._seed, self._owned_rows = layout, seed, owned_rows
        self._read = row_groups or partial(petastorm_groups, dataset, layout.fields)
        self._rows = {
            split: [group.rows for group in groups] for split, groups in dataset.splits.items()
        }
        #: The last row group of the training split that was read: the next work unit is often another part of it.
        self._kept: tuple[int, Rows] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: tuple[Assignment, Future[Rows], Iterator[Rows]] | None = None

    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        """See `Reader`."""
        if not assignment.row_ranges:
            return self._layout.unfilled(0).batches(np.arange(0), assignment.sizes)
        arriving = self._train_groups(assignment.groups)
        if self._ahead is not None and self._ahead[0] == assignment:
            _, first, rest = self._ahead
            self._ahead = None
            arriving = chain(map(Future.result, (first,)), rest)
        orders = reading_orders(assignment, self._rows["train"], self._owned_rows, seed=self._seed)
        return rebatch(zip(arriving, orders, strict=True), assignment.sizes)

    def prefetch(self, assignment: Assignment) -> None:
        """See `Reader`; a thread reads the first row group."""
        arriving = self._train_groups(assignment.groups)
        self._thread = self._thread or ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="reader"
        )
        self._ahead = (assignment, self._thread.submit(next, arriving), arriving)

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """See `Reader`."""
        rows, has_particles = self._rows["val"], "particles" in self._layout.inputs
        groups, sizes = validation_share(
            rows, rank=rank, world_size=world_size, has_particles=has_particles
        )
        orders = (np.arange(rows[group]) for group in groups)
        yield from rebatch(zip(self._row_groups("val", groups), orders, strict=True), sizes)

    def _train_groups(self, groups: Sequence[int]) -> Iterator[Rows]:
        kept = self._kept
        if kept is not None and [kept[0]] == list(groups[:1]):
            yield kept[1]
            groups = groups[1:]
        for group, rows in zip(groups, self._row_groups("train", groups), strict=True):
            self._kept = group, rows
            yield rows

    def _row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Rows]:
        return map(self._layout.rows, self._read(split, groups))


def rebatch(
    row_ranges: Iterator[tuple[Rows, NDArray[np.int64]]], sizes: Sequence[int]
) -> Iterator[Batch]:
    """Batches of given sizes, which add up to all rows, from a stream of row groups with their reading orders.

    The next row group is requested only after the last use of the previous one.

    Examples:
        >>> groups = [Rows((), torch.tensor(labels), torch.ones(3)) for labels in ([0, 1, 2], [3, 4, 5])]
        >>> stream = ((rows, np.array([2, 0, 1])) for rows in groups)
        >>> [batch.labels.tolist() for batch in rebatch(stream, [1, 3, 2])]
        [[2], [0, 1, 5], [3, 4]]
    """
    bounds, step, done = np.cumsum([0, *sizes]), 0, 0
    parts: list[Batch] = []
    for rows, order in row_ranges:
        start, done = done, done + len(order)
        # Steps that this row group completes, and the part of one that it begins.
        last = int(np.searchsorted(bounds, done, side="right")) - 1
        ends = [*bounds[step + 1 : last + 1], *([done] if done > bounds[last] else [])]
        for batch in rows.batches(order, np.diff([start, *ends]).tolist()):
            parts.append(batch)
            if step < last:
                yield _joined(parts)
                parts, step = [], step + 1


def _joined(parts: Sequence[Batch]) -> Batch:
    """The events of some batches; lists of particles get the length of the longest."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((*part.inputs, part.labels, part.weights) for part in parts), strict=True)
    *inputs, labels, weights = (torch.cat(_of_one_length(column)) for column in columns)
    return Batch(tuple(inputs), labels, weights)


def _of_one_length(column: Sequence[Tensor]) -> list[Tensor]:
    if column[0].dim() < 3:
        return list(column)
    longest = max(each.shape[1] for each in column)
    return [functional.pad(each, (0, 0, 0, longest - each.shape[1])) for each in column]


@atexit.register
def stop_open_readers() -> None:
    """Stop petastorm's threads: a thread inside pyarrow at the end of the interpreter would abort the process."""
    for reader in list(_OPEN_READERS):
        reader.stop()
        reader.join()


def petastorm_groups(
    dataset: FeatureDataset, fields: Sequence[str], split: str, groups: Sequence[int]
) -> Iterator[Columns]:
    """What `features.matrices.model_inputs` makes of some row groups of a dataset without a pickled schema."""
    given = tries = 0
    while given < len(groups):
        for columns in _delivered(
            dataset, fields, split, groups[given:], is_last_try=tries == _TRIES
        ):
            given, tries = given + 1, 0
            yield columns
        tries += 1


def _delivered(
    dataset: FeatureDataset,
    fields: Sequence[str],
    split: str,
    groups: Sequence[int],
    *,
    is_last_try: bool,
) -> Iterator[Columns]:
    """Row groups as one reader of petastorm delivers them; it may end early.

    Its pool compares two counters of another thread one after the other, and takes itself for done if that thread hands
    out its last file in between.

    One worker thread of petastorm reads the next row group during the use of this one; a single thread keeps the order.
    (Petastorm's dummy pool keeps it too, but sleeps for a tenth of a second every few row groups.)
    """
    files, rows = dataset.files(split), [group.rows for group in dataset.splits[split]]
    system = path_to_fs(dataset.data)[0]
    with (
        reporting(dataset, split),
        # No as_uri(), since petastorm takes %20 literally; num_epochs=1, since the default never ends.
        make_batch_reader(
            [f"file://{path_to_fs(files[group])[1]}" for group in groups],
            filesystem=system,
            schema_fields=required_columns(fields),
            transform_spec=transform_spec(fields, dataset.max_particles),
            reader_pool_type="thread",
            workers_count=1,
            results_queue_size=1,
            shuffle_row_groups=False,
            num_epochs=1,
        ) as reader,
    ):
        _OPEN_READERS.add(reader)
        for group in groups:
            with reporting(dataset, split, f"{files[group].name}: "):
                found = next(reader, None)
                if found is None and not is_last_try:
                    return
                columns: Columns = {name: getattr(found, name, np.empty(0)) for name in fields}
                counts = {len(values) for values in columns.values()}
                if counts != {rows[group]}:
                    raise ValueError(f"it has {min(counts)} rows, dataset.json says {rows[group]}")
            shapes = {name: event_shape(name, dataset.max_particles) for name in fields}
            yield {name: values.reshape(-1, *shapes[name]) for name, values in columns.items()}


def transform_spec(fields: Sequence[str], max_particles: int) -> Any:
    """Petastorm's description of `features.matrices.model_inputs`, which it calls for every row group.

    Matrices are lists of equal length in it, since petastorm would copy each event of a column of more dimensions.
    """
    given = features_schema()
    columns = required_columns(fields)
    schema = pa.schema([given.field(name) for name in columns])

    def made(frame: pd.DataFrame) -> pd.DataFrame:
        table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        inputs = model_inputs(table, fields, max_particles=max_particles)
        return pd.DataFrame({name: _series(values) for name, values in inputs.items()})

    lists = {
        name: math.prod(shape) for name in fields if (shape := event_shape(name, max_particles))
    }
    return TransformSpec(
        made,
        edit_fields=[
            (name, np.dtype(INPUT_COLUMNS[name].dtype).type, (width,), False)
            for name, width in lists.items()
        ],
        removed_fields=[name for name in columns if name not in fields],
    )


def _series(values: NDArray[Any]) -> pd.Series[Any]:
    """The rows of an array; lists stay in Arrow, which pandas would copy row by row."""
    if values.ndim == 1:
        return pd.Series(values)
    width = math.prod(values.shape[1:])
    offsets = pa.array(np.arange(0, values.size + 1, width, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
    return pd.Series(lists, dtype=pd.ArrowDtype(lists.type))
