"""Batches from row groups that petastorm, the reference reader, reads again in every epoch."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from features.columns import COLUMNS, INPUT_COLUMNS
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
    translate_read_errors,
    validation_share,
)
from training.readers.petastorm_compat import TransformSpec, make_batch_reader
from training.readers.sharding import Assignment, OwnedRows, reading_orders

ReadGroups = Callable[[str, Sequence[int]], Iterator[Columns]]
"""Reads row groups of a split, in the given order; each is valid until the next is requested."""

#: Number of further readers for a row group that petastorm does not deliver.
_RETRIES: Final = 3

_OPEN_READERS: Final[WeakSet[Any]] = WeakSet()


class StreamedReader:
    """A `Reader` that holds only the current row group in memory, and the next one.

    `dataset`: has no pickled schema. `layout`: columns and types of the batches. `owned_rows`: rows
    of each row group to train on; None: all. `read_groups`: reads row groups; None: petastorm.
    """

    def __init__(
        self,
        dataset: FeatureDataset,
        layout: BatchLayout,
        *,
        seed: int,
        owned_rows: OwnedRows | None = None,
        read_groups: ReadGroups | None = None,
    ) -> None:
        self._layout, self._seed, self._owned_rows = layout, seed, owned_rows
        self._read_groups = read_groups or partial(petastorm_groups, dataset, layout.fields)
        self._group_rows = {
            split: [group.rows for group in groups] for split, groups in dataset.splits.items()
        }
        #: The last row group of the training split that was read, with its number. The next work
        #: unit is often another part of it.
        self._last_group: tuple[int, Rows] | None = None
        self._thread: ThreadPoolExecutor | None = None
        #: The rows of the next assignment, of which a thread reads the first row group.
        self._prefetched: tuple[Assignment, Iterator[Rows]] | None = None

    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        """See `Reader`."""
        # Without rows, the steps are batches of no events.
        if not assignment.row_ranges:
            return self._layout.allocate(0).batches(np.arange(0), assignment.sizes)
        if self._prefetched is not None and self._prefetched[0] == assignment:
            _, rows_of_groups = self._prefetched
            self._prefetched = None
        else:
            rows_of_groups = self._read_train_groups(assignment.groups)
        orders = reading_orders(
            assignment, self._group_rows["train"], self._owned_rows, seed=self._seed
        )
        return rebatch(zip(rows_of_groups, orders, strict=True), assignment.sizes)

    def prefetch(self, assignment: Assignment) -> None:
        """See `Reader`; a thread reads the first row group."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        rows_of_groups = self._read_train_groups(assignment.groups)
        first_group = self._thread.submit(next, rows_of_groups)
        self._prefetched = assignment, _after_first(first_group, rows_of_groups)

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """See `Reader`."""
        group_rows = self._group_rows["val"]
        has_particles = "particles" in self._layout.inputs
        groups, sizes = validation_share(
            group_rows, rank=rank, world_size=world_size, has_particles=has_particles
        )
        orders = [np.arange(group_rows[group]) for group in groups]
        return rebatch(zip(self._read_rows("val", groups), orders, strict=True), sizes)

    def _read_train_groups(self, groups: Sequence[int]) -> Iterator[Rows]:
        """Yield row groups of the training split; the one that was read last is not read again."""
        last_group = self._last_group
        if last_group is not None and groups and groups[0] == last_group[0]:
            yield last_group[1]
            groups = groups[1:]
        for group, rows in zip(groups, self._read_rows("train", groups), strict=True):
            self._last_group = group, rows
            yield rows

    def _read_rows(self, split: str, groups: Sequence[int]) -> Iterator[Rows]:
        return map(self._layout.rows, self._read_groups(split, groups))


def _after_first(first: Future[Rows], remaining: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the result of a thread, for which it may wait, then the other row groups."""
    yield first.result()
    yield from remaining


def rebatch(
    groups: Iterator[tuple[Rows, NDArray[np.int64]]], sizes: Sequence[int]
) -> Iterator[Batch]:
    """Yield batches of given sizes from a stream of row groups with their reading orders.

    A batch may need rows of several row groups. Its pieces are copied from each row group and
    joined when the last one has come. So the next row group is requested only after the last use
    of the previous one. The sizes add up to all rows.

    Examples:
        >>> def rows(*labels: int) -> Rows:
        ...     return Rows((), torch.tensor(labels), torch.ones(3))
        >>> order = np.array([2, 0, 1])
        >>> groups = iter([(rows(0, 1, 2), order), (rows(3, 4, 5), order)])
        >>> [batch.labels.tolist() for batch in rebatch(groups, [1, 3, 2])]
        [[2], [0, 1, 5], [3, 4]]
    """
    bounds = np.cumsum([0, *sizes])
    step = num_read = 0
    pieces_of_step: list[Batch] = []
    for rows, order in groups:
        start = num_read
        num_read += len(order)
        # This row group is cut where steps end in it. The last piece may begin a step that it does
        # not complete.
        stop_step = int(np.searchsorted(bounds, num_read, side="right")) - 1
        cuts = [start, *bounds[step + 1 : stop_step + 1]]
        if num_read > bounds[stop_step]:
            cuts.append(num_read)
        for piece in rows.batches(order, np.diff(cuts).tolist()):
            pieces_of_step.append(piece)
            # Steps before `stop_step` are complete with this piece.
            if step < stop_step:
                yield _join(pieces_of_step)
                pieces_of_step = []
                step += 1


def _join(batches: Sequence[Batch]) -> Batch:
    """Join some batches; matrices of particles are padded with 0 to the longest."""
    if len(batches) == 1:
        return batches[0]
    inputs_of_batches = [batch.inputs for batch in batches]
    input_columns = zip(*inputs_of_batches, strict=True)
    spectators = [batch.spectators for batch in batches if batch.spectators is not None]
    joined_spectators = torch.cat(spectators) if spectators else None
    return Batch(
        tuple(torch.cat(_pad_to_longest(column)) for column in input_columns),
        torch.cat([batch.labels for batch in batches]),
        torch.cat([batch.weights for batch in batches]),
        joined_spectators,
    )


def _pad_to_longest(columns: Sequence[Tensor]) -> list[Tensor]:
    """Pad particles, (num_events, length, 19), to the same length; other columns stay unchanged."""
    if columns[0].dim() < 3:
        return list(columns)
    longest = max(column.shape[1] for column in columns)
    # The four numbers are zeros before and behind the features, then the particles.
    return [functional.pad(column, (0, 0, 0, longest - column.shape[1])) for column in columns]


@atexit.register
def stop_open_readers() -> None:
    """Stop petastorm's threads: a thread in pyarrow at the interpreter's end aborts the process."""
    for reader in list(_OPEN_READERS):
        reader.stop()
        reader.join()


def petastorm_groups(
    dataset: FeatureDataset, fields: Sequence[str], split: str, groups: Sequence[int]
) -> Iterator[Columns]:
    """Yield the model inputs of some row groups of a dataset without a pickled schema.

    A reader of petastorm may end early. Then another one reads the remaining row groups, up to
    three times in a row without a row group.
    """
    num_read = retries = 0
    while num_read < len(groups):
        remaining = groups[num_read:]
        is_last_try = retries == _RETRIES
        for columns in _read_with_petastorm(
            dataset, fields, split, remaining, is_last_try=is_last_try
        ):
            num_read += 1
            retries = 0
            yield columns
        retries += 1


def _read_with_petastorm(
    dataset: FeatureDataset,
    fields: Sequence[str],
    split: str,
    groups: Sequence[int],
    *,
    is_last_try: bool,
) -> Iterator[Columns]:
    """Yield row groups from one reader of petastorm, which may end early.

    An early end comes from a race in petastorm's pool of threads. It compares two counters of
    another thread one after the other, and takes itself for done if that thread hands out its last
    file in between.

    One worker thread of petastorm reads the next row group during the use of this one; a single
    thread keeps the order. (Petastorm's dummy pool keeps it too, but sleeps for a tenth of a second
    every few row groups.)

    `is_last_try`: whether an early end is an error.
    """
    files = dataset.files(split)
    group_rows = [group.rows for group in dataset.splits[split]]
    shapes = {name: event_shape(name, dataset.max_particles) for name in fields}
    attributes = _attribute_names(fields)
    # Path.as_uri would write a space as %20, which petastorm takes literally.
    urls = [f"file://{path_to_fs(files[group])[1]}" for group in groups]
    with (
        translate_read_errors(dataset, split),
        make_batch_reader(
            urls,
            filesystem=path_to_fs(dataset.data)[0],
            schema_fields=required_columns(fields),
            transform_spec=transform_spec(fields, dataset.max_particles),
            reader_pool_type="thread",
            workers_count=1,
            results_queue_size=1,
            shuffle_row_groups=False,
            # By default the reader repeats the files without end.
            num_epochs=1,
        ) as reader,
    ):
        _OPEN_READERS.add(reader)
        for group in groups:
            with translate_read_errors(dataset, split, f"{files[group].name}: "):
                delivered = next(reader, None)
                if delivered is None and not is_last_try:
                    return
                columns: Columns = {
                    name: getattr(delivered, attribute, np.empty(0))
                    for name, attribute in attributes.items()
                }
                counts = {len(column) for column in columns.values()}
                if counts != {group_rows[group]}:
                    raise ValueError(
                        f"it has {min(counts)} rows, dataset.json says {group_rows[group]}"
                    )
            yield {name: column.reshape(-1, *shapes[name]) for name, column in columns.items()}


def transform_spec(fields: Sequence[str], max_particles: int) -> Any:
    """Describe to petastorm a function of each row group: `model_inputs`.

    Petastorm must know which columns the function changes and removes. A matrix per event, such as
    the particles, is a flat list of fixed length there, since petastorm would copy each event of a
    column of more dimensions.
    """
    columns = required_columns(fields)
    attributes = _attribute_names(fields)
    # The user's columns are whole or real numbers; float64 holds both.
    passed_through = [name for name, attribute in attributes.items() if attribute != name]
    user_fields = [pa.field(name, pa.float64()) for name in passed_through]
    schema = features_schema(user_fields)
    schema = pa.schema([schema.field(name) for name in columns])

    def transform(frame: pd.DataFrame) -> pd.DataFrame:
        # By default pyarrow takes NaN of pandas for an empty value.
        arrays = [pa.array(frame[field.name], field.type, from_pandas=False) for field in schema]
        table = pa.Table.from_arrays(arrays, schema=schema)
        inputs = model_inputs(table, fields, max_particles=max_particles)
        return pd.DataFrame({attributes[name]: _to_series(array) for name, array in inputs.items()})

    edited_fields: list[tuple[str, type, tuple[int, ...], bool]] = []
    for name in fields:
        shape = event_shape(name, max_particles)
        if shape:
            number_type = np.dtype(INPUT_COLUMNS[name].dtype).type
            edited_fields.append((name, number_type, (math.prod(shape),), False))
        elif attributes[name] != name:
            edited_fields.append((attributes[name], np.float64, (), False))
    removed_fields = [name for name in columns if name not in attributes.values()]
    return TransformSpec(transform, edit_fields=edited_fields, removed_fields=removed_fields)


def _attribute_names(fields: Sequence[str]) -> dict[str, str]:
    """Return the names that petastorm gives to some fields, which it makes attributes.

    Names of the user's columns may hold any character, such as dots, so they get others.
    """
    names: dict[str, str] = {}
    for index, name in enumerate(fields):
        is_ours = name in INPUT_COLUMNS or name in COLUMNS
        names[name] = name if is_ours else f"column_{index}"
    return names


def _to_series(array: NDArray[Any]) -> pd.Series[Any]:
    """Convert the rows of an array to a series of numbers, or of flat lists if a row has several.

    Lists stay in Arrow's memory, since pandas would copy them row by row.
    """
    if array.ndim == 1:
        return pd.Series(array)
    width = math.prod(array.shape[1:])
    # Arrow holds all lists as one array of numbers and the place at which each list begins.
    offsets = pa.array(np.arange(0, array.size + 1, width, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(array.reshape(-1)))
    return pd.Series(lists, dtype=pd.ArrowDtype(lists.type))
