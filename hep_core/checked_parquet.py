"""Reads the Parquet files that this pipeline wrote; no other code does, since damage is found here alone."""

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

    The checksum of a page does not cover its header, which tells the number of its values: too low a number cuts the
    last list of a page. The footer, whose digest is known, holds the numbers of whole columns.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.metadata: Any = file.metadata
        """Its footer, a `pyarrow.parquet.FileMetaData`."""
        self.schema: pa.Schema = file.schema_arrow
        self.num_row_groups: int = file.num_row_groups

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of some columns."""
        table = self._file.read(columns=columns)
        self._refuse_short_lists(list_values(table), range(self.num_row_groups))
        return table

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a row group."""
        table = self._file.read_row_group(group, columns=columns)
        self._refuse_short_lists(list_values(table), [group])
        return table

    def iter_batches(
        self, batch_size: int, columns: Sequence[str] | None = None, *, use_threads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All rows, batch by batch; the lengths of lists are checked at the end of the file."""
        counts: Counter[str] = Counter()
        for batch in self._file.iter_batches(batch_size, columns=columns, use_threads=use_threads):
            counts.update(list_values(batch))
            yield batch
        self._refuse_short_lists(counts, range(self.num_row_groups))

    def _refuse_short_lists(self, counts: Mapping[str, int], groups: Sequence[int]) -> None:
        if not counts:
            return
        schema = self._file.schema
        paths = [schema.column(leaf).path.partition(".list.")[0] for leaf in range(len(schema))]
        leaves = {path: leaf for leaf, path in enumerate(paths)}
        for name, count in counts.items():
            columns = [self.metadata.row_group(group).column(leaves[name]) for group in groups]
            expected = sum(column.num_values for column in columns)
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
    """Open a Parquet file of ours, also on object storage; `source` is the open file, if there is one.

    Raises:
        DamagedOutputError: Something failed in the context, and the file cannot be read as it was written.
    """
    try:
        opened = parquet_source(path) if source is None else source
        with pq.ParquetFile(opened, page_checksum_verification=True, **options) as file:
            yield CheckedParquetFile(file)
    except (DamagedOutputError, InputFileError):
        raise
    except Exception as cause:
        if why := damage_of_parquet(path):
            raise DamagedOutputError(path, why) from cause
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
    """Why a Parquet file cannot be read as it was written; empty if it can, or if its server or disk is at fault."""
    try:
        with pq.ParquetFile(parquet_source(path), page_checksum_verification=True) as file:
            checked = CheckedParquetFile(file)
            for group in range(checked.num_row_groups):
                checked.read_row_group(group)
    except Exception as cause:  # noqa: BLE001 - damaged bytes raise errors of any type
        if is_system_error(cause) or remote_error(str(path), where="its content", cause=cause):
            return ""
        return f"reading it fails ({type(cause).__name__}: {' '.join(str(cause).split())})"
    return ""
