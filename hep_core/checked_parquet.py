"""Reads the Parquet files that this pipeline wrote; all readers use it, so that damage is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hep_core.input_errors import InputFileError, remote_error
from hep_core.integrity import DamagedOutputError, is_system_error
from hep_core.storage import parquet_source


class CheckedParquetFile:
    """A Parquet file whose pages and lists are checked when they are read.

    The checksum of a page does not cover its header, which holds the number of its values. If
    damage makes this number too low, the last list of the page is cut without an error. So the
    numbers of values read are compared with those in the footer, whose digest is known.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.metadata: Any = file.metadata
        """Its footer, a `pyarrow.parquet.FileMetaData`."""
        self.schema: pa.Schema = file.schema_arrow
        self.num_row_groups: int = file.num_row_groups

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all rows of some columns; None for all columns.

        Raises:
            ValueError: Lists are shorter than they were written.
        """
        table = self._file.read(columns=columns)
        self._check_list_values(list_values(table), range(self.num_row_groups))
        return table

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows of a row group; otherwise as `read`."""
        table = self._file.read_row_group(group, columns=columns)
        self._check_list_values(list_values(table), [group])
        return table

    def iter_batches(
        self, batch_size: int, columns: Sequence[str] | None = None, *, use_threads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Read all rows, batch by batch.

        The lengths of lists are checked at the end of the file, after the last batch.
        """
        counts: Counter[str] = Counter()
        batches = self._file.iter_batches(batch_size, columns=columns, use_threads=use_threads)
        for batch in batches:
            counts.update(list_values(batch))
            yield batch
        self._check_list_values(counts, range(self.num_row_groups))

    def _check_list_values(self, counts: Mapping[str, int], groups: Sequence[int]) -> None:
        """Compare the numbers of values of columns of lists with the footer.

        `counts` has the numbers that were read, by column; `groups` are the row groups read.

        Raises:
            ValueError: A number differs.
        """
        if not counts:
            return
        # The footer counts leaves, the plain columns inside lists and structs; one of a list is
        # enough.
        schema = self._file.schema
        leaf_of_column = {}
        for leaf in range(len(schema)):
            column_name = schema.column(leaf).path.partition(".list.")[0]
            leaf_of_column[column_name] = leaf
        for name, count in counts.items():
            expected = 0
            for group in groups:
                column = self.metadata.row_group(group).column(leaf_of_column[name])
                expected += column.num_values
            if count != expected:
                raise ValueError(
                    f"the lists of column {name} have {count} values, the footer says {expected}"
                )


def list_values(rows: pa.Table | pa.RecordBatch) -> dict[str, int]:
    """Number of values of each column of lists, as Parquet counts them: an empty list is one."""
    counts = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_list(column.type):
            lengths = pc.max_element_wise(pc.list_value_length(column), 1)
            counts[name] = pc.sum(lengths).as_py() or 0
    return counts


@contextmanager
def open_parquet(path: Path, source: Any = None, **options: Any) -> Iterator[CheckedParquetFile]:
    """Open a Parquet file of ours, also on object storage.

    If anything fails in the context, the whole file is read again to find out whether it is
    damaged. `source` is the open file, if there is one; `options` are those of pyarrow.

    Raises:
        DamagedOutputError: Something failed in the context, and the file is damaged.
    """
    try:
        if source is None:
            source = parquet_source(path)
        with pq.ParquetFile(source, page_checksum_verification=True, **options) as file:
            yield CheckedParquetFile(file)
    except (DamagedOutputError, InputFileError):
        raise
    except Exception as cause:
        if damage := damage_of_parquet(path):
            raise DamagedOutputError(path, damage) from cause
        raise


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A table of a Parquet file of ours; see `open_parquet`."""
    with open_parquet(path) as file:
        return file.read(columns)


def num_rows(path: Path) -> int:
    """Number of rows of a Parquet file of ours."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


def damage_of_parquet(path: Path) -> str:
    """Read a whole Parquet file, and say why it cannot be read.

    The result is empty if it can be read, or if its disk or server is at fault.
    """
    try:
        with pq.ParquetFile(parquet_source(path), page_checksum_verification=True) as file:
            checked = CheckedParquetFile(file)
            for group in range(checked.num_row_groups):
                checked.read_row_group(group)
    except Exception as cause:  # noqa: BLE001 - damaged bytes raise errors of any type
        if is_system_error(cause) or remote_error(str(path), where="its content", cause=cause):
            return ""
        message = " ".join(str(cause).split())
        return f"reading it fails ({type(cause).__name__}: {message})"
    return ""
