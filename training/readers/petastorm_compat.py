"""Makes petastorm 0.12.1 work with today's pyarrow, NumPy and pandas; no other module imports it.

Petastorm needs pyarrow's legacy dataset API, which ended with pyarrow 14, and names that NumPy 2
has dropped. This module adds both to petastorm's own modules; pyarrow and NumPy stay unchanged.
This is enough for `make_batch_reader` on a list of files with its thread pool. Its process pool,
partitions, filters, `make_reader` and hdfs do not work.

Here no dataset has common metadata, so petastorm finds no pickled schema to execute.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO, Final
from urllib.parse import ParseResult

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from features.matrices import require_no_nulls
from hep_core.checked_parquet import open_parquet
from training.errors import TrainingError

__all__ = ["TransformSpec", "make_batch_reader"]

#: Release of petastorm that the patches below support.
SUPPORTED: Final = "0.12.1"


@dataclass(frozen=True)
class ParquetDatasetPiece:
    """A file or one of its row groups, with the interface of a former class of pyarrow."""

    path: str
    open_file_func: Callable[[str], BinaryIO]
    row_group: int = 0
    partition_keys: Sequence[object] = ()

    def get_metadata(self) -> pq.FileMetaData:
        """Read the footer of the file."""
        with self.open_file_func(self.path) as file:
            return pq.read_metadata(file)

    def read(self, columns: Collection[str], partitions: None) -> pa.Table:  # noqa: ARG002 - petastorm passes both
        """Read these columns of the row group; `partitions` is part of the former interface.

        Petastorm makes NaN of empty values, so they are refused here.
        """
        with (
            self.open_file_func(self.path) as file,
            open_parquet(Path(self.path), file, pre_buffer=True) as parquet,
        ):
            table = parquet.read_row_group(self.row_group, list(columns))
        for name in table.column_names:
            require_no_nulls(name, table[name])
        return table


class ParquetDataset:
    """A list of files, with the interface of pyarrow's class of this name before its newer API."""

    partitions = None
    metadata = None
    common_metadata = None

    def __init__(self, paths: list[str], filesystem: AbstractFileSystem, **_: object) -> None:
        self.paths = paths
        self.fs = filesystem
        self.pieces = [ParquetDatasetPiece(path, filesystem.open) for path in paths]


def _import_petastorm() -> ModuleType:
    """Import petastorm, then change names in its modules so that it works with today's packages.

    During the import, empty modules take the places of those that are gone. Then petastorm gets
    copies of pyarrow.parquet and NumPy with the names that these have dropped.

    Raises:
        TrainingError: Another release than the supported one is installed.
    """
    version = metadata.version("petastorm")
    if version != SUPPORTED:
        raise TrainingError(
            f"petastorm {version} is installed, but {__name__} patches the modules of {SUPPORTED} "
            f"only. Run `make setup`, or `pip install petastorm=={SUPPORTED}`."
        )
    # Petastorm imports names from these modules but uses none of them for local files.
    missing_modules: dict[str, dict[str, Any]] = {
        "petastorm.hdfs.namenode": {"HdfsNamenodeResolver": None, "HdfsConnector": None},
        "pyarrow.filesystem": {"LocalFileSystem": LocalFileSystem},
    }
    with _stand_ins(missing_modules):
        petastorm = importlib.import_module("petastorm")

    legacy_parquet = _extended_copy(
        pq, ParquetDataset=ParquetDataset, ParquetDatasetPiece=ParquetDatasetPiece
    )
    for name in ("arrow_reader_worker", "etl.dataset_metadata", "reader"):
        _patch(name, pq=legacy_parquet)
    legacy_numpy = _extended_copy(np, unicode_=np.str_, string_=np.bytes_)
    for name in ("arrow_reader_worker", "unischema"):
        _patch(name, np=legacy_numpy)
    local_pyarrow = SimpleNamespace(localfs=LocalFileSystem())
    _patch("fs_utils", pyarrow=local_pyarrow, urlparse=_parse_local_url)
    # Petastorm writes the traceback of an error to stderr, then raises the error, for which we have
    # a better message.
    _patch("workers_pool.thread_pool", sys=SimpleNamespace(stderr=io.StringIO()))
    return petastorm


def _patch(module_name: str, **names: object) -> None:
    """Set names in a module of petastorm; `module_name` is relative to petastorm."""
    module = importlib.import_module(f"petastorm.{module_name}")
    vars(module).update(names)


@contextmanager
def _stand_ins(modules: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Make modules of these names, with the given content, importable within the context."""
    for module_name, names in modules.items():
        sys.modules[module_name] = ModuleType(module_name)
        vars(sys.modules[module_name]).update(names)
    try:
        yield
    finally:
        for module_name in modules:
            del sys.modules[module_name]


def _parse_local_url(url: str) -> ParseResult:
    """Parse a URL so that all text behind `file://` is the path, on any file system.

    The parser that petastorm would use cuts the path at `#` or `?`.
    """
    return ParseResult("file", "", url.removeprefix("file://"), "", "", "")


def _extended_copy(module: ModuleType, **extra_names: object) -> ModuleType:
    """Return a copy of a module with more names in it; the module itself stays unchanged."""
    copy = ModuleType(module.__name__)
    vars(copy).update(vars(module), **extra_names)
    return copy


_PETASTORM: Final = _import_petastorm()
make_batch_reader: Final[Callable[..., Any]] = _PETASTORM.make_batch_reader
TransformSpec: Final[Callable[..., Any]] = _PETASTORM.TransformSpec
