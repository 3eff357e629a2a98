"""Reads row groups of the features Parquet as NumPy columns, by pyarrow alone; by petastorm: `petastorm_source`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from features.columns import COLUMNS, INPUT_COLUMNS
from features.dataset import FeatureDataset
from features.errors import DatasetError
from features.matrices import columns_of, model_inputs
from features.schema import readable
from ingestion.errors import IngestionError, remote_error
from ingestion.storage import is_remote
from training.errors import DamagedDatasetError
from training.readers.batch import Columns, shape_of

T = TypeVar("T")

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
            {name: np.empty((most, *shape_of(name, self._most)), dtype=dtype_of_column(name)) for name in self._fields}
            for _ in range(2)
        ]
        itemsize = np.dtype(dtype_of_column("particles")).itemsize
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


def dtype_of_column(name: str) -> str:
    """The type of the numbers of an input or column."""
    return INPUT_COLUMNS[name].dtype if name in INPUT_COLUMNS else COLUMNS[name].dtype
