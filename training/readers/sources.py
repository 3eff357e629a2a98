"""Reads row groups of the features Parquet as NumPy columns, by petastorm or by pyarrow alone."""

from __future__ import annotations

import atexit
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from typing_extensions import override

from features.columns import COLUMNS, INPUT_COLUMNS
from features.dataset import FeatureDataset
from features.errors import DatasetError
from features.matrices import columns_of, model_inputs
from features.schema import features_schema, readable
from ingestion.errors import IngestionError, remote_error
from ingestion.storage import is_remote, on_system
from training.errors import DamagedDatasetError
from training.readers.batch import Columns, shape_of
from training.readers.petastorm_compat import TransformSpec, make_batch_reader

T = TypeVar("T")

#: Number of further readers for a row group that petastorm does not deliver.
_TRIES: Final = 3
#: Errors of petastorm, pyarrow, NumPy and features for a file that is damaged or has other columns.
_READ_ERRORS: Final = (
    *(OSError, pa.ArrowException, KeyError, ValueError, RuntimeError, TypeError, AttributeError),
    DatasetError,
)
#: Bytes of a column to decode at once, so that they stay in the processor's cache until they are copied.
_DECODED_BYTES: Final = 2 << 20
_READ_BYTES: Final = 1 << 20
#: Number of row groups without particles to read together.
_IN_A_GO: Final = 8

_OPEN_READERS: Final[WeakSet[Any]] = WeakSet()


@atexit.register
def stop_open_readers() -> None:
    """Stop petastorm's threads: a thread inside pyarrow at the end of the interpreter would abort the process."""
    for reader in list(_OPEN_READERS):
        reader.stop()
        reader.join()


class Source(ABC):
    """Reads row groups in order.

    Args:
        dataset: The features dataset, checked by `refuse_pickled_schema`.
        fields: Inputs and columns to read.
    """

    def __init__(self, dataset: FeatureDataset, fields: Sequence[str]) -> None:
        self._dataset = dataset
        self._fields = list(fields)
        self._most = dataset.most_particles

    @abstractmethod
    def row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        """What `features.matrices.model_inputs` makes of the given row groups, in the given order.

        Each row group is valid until the next one is requested.

        Args:
            split: Name of the split.
            groups: Numbers of the row groups.

        Raises:
            DamagedDatasetError: A file cannot be read, or differs from `dataset.json`.
        """


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


class ArrowSource(Source):
    """Reads with pyarrow alone."""

    @override
    def row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        yield from (self._in_parts if "particles" in self._fields else self._in_a_go)(split, groups)

    def _in_a_go(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        """Without particles: decode several row groups before the first is used.

        Decoding and shuffling evict each other from the processor's cache, so they should not alternate too often.
        """
        for first in range(0, len(groups), _IN_A_GO):
            some = groups[first : first + _IN_A_GO]
            tables = []
            for group in some:
                with self._opened(split, group) as file:
                    tables.append(file.read(columns=columns_of(self._fields), use_threads=False))
            for group, table in zip(some, tables, strict=True):
                with self._reporting(split, group):
                    columns = model_inputs(table, self._fields, most_particles=self._most)
                yield columns

    def _in_parts(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        """With particles: decode in small pieces, into arrays that later row groups reuse.

        A thread reads one row group ahead; pyarrow and NumPy release the interpreter to the training meanwhile.
        """
        rows = [group.rows for group in self._dataset.splits[split]]
        most = max((rows[group] for group in groups), default=0)
        arrays = [
            {name: np.empty((most, *shape_of(name, self._most)), dtype=_dtype(name)) for name in self._fields}
            for _ in range(2)
        ]
        itemsize = np.dtype(_dtype("particles")).itemsize
        at_once = max(1, _DECODED_BYTES // (math.prod(shape_of("particles", self._most)) * itemsize))

        def read(number: int) -> Columns:
            group = groups[number]
            columns = {name: array[: rows[group]] for name, array in arrays[number % 2].items()}
            with self._opened(split, group) as file:
                start = 0
                for part in file.iter_batches(at_once, columns=columns_of(self._fields), use_threads=False):
                    stop = start + part.num_rows
                    for name, values in model_inputs(part, self._fields, most_particles=self._most).items():
                        columns[name][start:stop] = values
                    start = stop
            return columns

        yield from one_ahead(read, len(groups))

    @contextmanager
    def _opened(self, split: str, group: int) -> Iterator[pq.ParquetFile]:
        """The file of a row group."""
        name, expected = self._dataset.splits[split][group]
        path = self._dataset.data / name
        with (
            self._reporting(split, group),
            pq.ParquetFile(readable(path), buffer_size=_READ_BYTES, pre_buffer=is_remote(path)) as file,
        ):
            found = file.metadata.num_rows
            if found != expected:
                raise ValueError(f"it has {found} rows, dataset.json says {expected}")
            yield file

    def _reporting(self, split: str, group: int) -> AbstractContextManager[None]:
        """Errors of a row group name its file."""
        return reporting(self._dataset, split, f"{Path(self._dataset.splits[split][group].file).name}: ")


def one_ahead(work: Callable[[int], T], count: int) -> Iterator[T]:
    """Results of `work(0)` to `work(count - 1)`; a thread begins each when the previous one is taken.

    Examples:
        >>> list(one_ahead(lambda number: number**2, 4))
        [0, 1, 4, 9]
    """
    if not count:
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        begun = thread.submit(work, 0)
        for number in range(1, count):
            result = begun.result()
            begun = thread.submit(work, number)
            yield result
        yield begun.result()


@contextmanager
def reporting(dataset: FeatureDataset, split: str, where: str = "") -> Iterator[None]:
    """Turn errors of reading a split into those of its server, or of its files; others stay as they are.

    Args:
        dataset: The features dataset.
        split: Name of the split.
        where: Begin of the message about its files.

    Raises:
        DamagedDatasetError: A file is missing or cannot be read.
    """
    try:
        yield
    except (DamagedDatasetError, IngestionError):
        raise
    except Exception as cause:
        if is_remote(dataset.data) and (
            problem := remote_error(dataset.lies_in, where=f"the {split} split", cause=cause)
        ):
            raise problem from cause
        if not isinstance(cause, _READ_ERRORS):
            raise
        why = " ".join(f"{where}{cause}".split())
        raise DamagedDatasetError(
            f"the {split} split in {dataset.data} cannot be read ({why}). "
            f"Make the features again: `python -m pipeline features --force`."
        ) from cause


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
        edit_fields=[(name, np.dtype(_dtype(name)).type, (math.prod(shape),), False) for name, shape in shapes.items()],
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


def _dtype(name: str) -> str:
    return INPUT_COLUMNS[name].dtype if name in INPUT_COLUMNS else COLUMNS[name].dtype
