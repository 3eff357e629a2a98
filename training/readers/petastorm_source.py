"""Reads row groups of the features Parquet as NumPy columns, by petastorm, the reference reader."""

from __future__ import annotations

import atexit
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final
from weakref import WeakSet

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from features.matrices import columns_of, model_inputs
from features.schema import features_schema
from ingestion.storage import on_system
from training.readers.batch import Columns, shape_of
from training.readers.petastorm_compat import TransformSpec, make_batch_reader
from training.readers.sources import Source, dtype_of_column, reporting

#: Number of further readers for a row group that petastorm does not deliver.
_TRIES: Final = 3

_OPEN_READERS: Final[WeakSet[Any]] = WeakSet()


@atexit.register
def stop_open_readers() -> None:
    """Stop petastorm's threads: a thread inside pyarrow at the end of the interpreter would abort the process."""
    for reader in list(_OPEN_READERS):
        reader.stop()
        reader.join()


class _EndsEarlyError(Exception):
    """A reader of petastorm delivers fewer row groups than it has."""


class PetastormSource(Source):
    """Reads with petastorm, the reference reader.

    One worker thread of petastorm reads the next row group during the use of this one; a single thread keeps the order.
    (Petastorm's dummy pool keeps it too, but sleeps for a tenth of a second every few row groups.)
    """

    @override
    def row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        given = tries = 0
        while given < len(groups):
            try:
                for columns in self._delivered(split, groups[given:], is_last_try=tries == _TRIES):
                    given, tries = given + 1, 0
                    yield columns
            except _EndsEarlyError:
                tries += 1

    def _delivered(self, split: str, groups: Sequence[int], *, is_last_try: bool) -> Iterator[Columns]:
        """Row groups as one reader of petastorm delivers them.

        Raises:
            _EndsEarlyError: It ends early. Its pool compares two counters of another thread one after the other, and
                takes itself for done if that thread hands out its last file in between.
        """
        files = self._dataset.files(split)
        system = on_system(self._dataset.data)[0]
        rows = [group.rows for group in self._dataset.splits[split]]
        with (
            reporting(self._dataset, split),
            # No as_uri(), since petastorm takes %20 literally; num_epochs=1, since the default never ends.
            make_batch_reader(
                [f"file://{on_system(files[group])[1]}" for group in groups],
                filesystem=system,
                schema_fields=columns_of(self._fields),
                transform_spec=transform_spec(self._fields, self._most),
                reader_pool_type="thread",
                workers_count=1,
                results_queue_size=1,
                shuffle_row_groups=False,
                num_epochs=1,
            ) as reader,
        ):
            _OPEN_READERS.add(reader)
            for group in groups:
                with reporting(self._dataset, split, f"{files[group].name}: "):
                    columns = self._checked(_next(reader, is_last_try=is_last_try), rows[group])
                yield columns

    def _checked(self, found: object, num_rows: int) -> Columns:
        """Check the number of rows, and give the matrices of a row group their shapes."""
        columns = {name: getattr(found, name) for name in self._fields} if found is not None else {}
        for name in self._fields:
            rows = len(columns[name]) if columns else 0
            if rows != num_rows:
                raise ValueError(f"it has {rows} rows, dataset.json says {num_rows}")
        return {name: values.reshape(num_rows, *shape_of(name, self._most)) for name, values in columns.items()}


def _next(reader: Iterator[object], *, is_last_try: bool) -> object:
    found = next(reader, None)
    if found is None and not is_last_try:
        raise _EndsEarlyError
    return found


def transform_spec(fields: Sequence[str], most_particles: int) -> Any:
    """Petastorm's description of `features.matrices.model_inputs`, which it calls for every row group.

    Matrices are lists of equal length in it, since petastorm would copy each event of a column of more dimensions.
    """
    given = features_schema()
    columns = columns_of(fields)
    schema = pa.schema([given.field(name) for name in columns])

    def made(frame: pd.DataFrame) -> pd.DataFrame:
        table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        inputs = model_inputs(table, fields, most_particles=most_particles)
        return pd.DataFrame({name: _series(values) for name, values in inputs.items()})

    shapes = {name: shape for name in fields if (shape := shape_of(name, most_particles))}
    return TransformSpec(
        made,
        edit_fields=[
            (name, np.dtype(dtype_of_column(name)).type, (math.prod(shape),), False) for name, shape in shapes.items()
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
