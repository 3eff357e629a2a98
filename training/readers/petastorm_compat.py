"""Makes petastorm 0.12.1 work with today's pyarrow, NumPy and pandas; no other module imports it.

Petastorm needs pyarrow's legacy dataset API, which ended with pyarrow 14, and names that NumPy 2 has dropped. This
module adds both to petastorm's own modules; pyarrow and NumPy stay unchanged. This is enough for `make_batch_reader` on
a list of files with its thread pool; its process pool, partitions, filters, `make_reader` and hdfs do not work.

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

from hep_core.checked_parquet import open_parquet
from training.errors import TrainingError

__all__ = ["TransformSpec", "make_batch_reader"]

#: Release of petastorm that the patches below support.
SUPPORTED: Final = "0.12.1"


@dataclass(frozen=True)
class ParquetDatasetPiece:
    """A file or one of its row groups, with the interface of pyarrow's former class of this name."""

    path: str
    open_file_func: Callable[[str], BinaryIO]
    row_group: int = 0
    partition_keys: Sequence[object] = ()

    def get_metadata(self) -> pq.FileMetaData:
        """The footer of the file."""
        with self.open_file_func(self.path) as file:
            return pq.read_metadata(file)

    def read(self, columns: Collection[str], partitions: None) -> pa.Table:  # noqa: ARG002 - petastorm passes both
        """The content of the row group."""
        with (
            self.open_file_func(self.path) as file,
            open_parquet(Path(self.path), file, pre_buffer=True) as parquet,
        ):
            return parquet.read_row_group(self.row_group, list(columns))


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
    """Import petastorm, then add the missing names to its modules."""
    found = metadata.version("petastorm")
    if found != SUPPORTED:
        raise TrainingError(
            f"petastorm {found} is installed, but {__name__} patches the modules of {SUPPORTED} only. "
            f"Run `make setup`, or `pip install petastorm=={SUPPORTED}`."
        )
    # Petastorm imports names from these modules but uses none of them for local files.
    with _stand_ins(
        {
            "petastorm.hdfs.namenode": {"HdfsNamenodeResolver": None, "HdfsConnector": None},
            "pyarrow.filesystem": {"LocalFileSystem": LocalFileSystem},
        }
    ):
        petastorm = importlib.import_module("petastorm")
    modules = {
        name: importlib.import_module(f"petastorm.{name}")
        for name in (
            "arrow_reader_worker",
            "etl.dataset_metadata",
            "fs_utils",
            "reader",
            "unischema",
        )
    }
    legacy = _with(pq, ParquetDataset=ParquetDataset, ParquetDatasetPiece=ParquetDatasetPiece)
    for name in ("arrow_reader_worker", "etl.dataset_metadata", "reader"):
        vars(modules[name])["pq"] = legacy
    for name in ("arrow_reader_worker", "unischema"):
        vars(modules[name])["np"] = _with(np, unicode_=np.str_, string_=np.bytes_)
    vars(modules["fs_utils"])["pyarrow"] = SimpleNamespace(localfs=LocalFileSystem())
    vars(modules["fs_utils"])["urlparse"] = _local_url
    # Petastorm writes the traceback of an error to stderr, then raises the error, for which we have a better message.
    thread_pool = importlib.import_module("petastorm.workers_pool.thread_pool")
    vars(thread_pool)["sys"] = SimpleNamespace(stderr=io.StringIO())
    return petastorm


@contextmanager
def _stand_ins(modules: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Make modules of these names importable within the context."""
    for name, content in modules.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _local_url(url: str) -> ParseResult:
    """The whole of what follows `file://` as the path on any file system: petastorm would cut it at `#` or `?`."""
    return ParseResult("file", "", url.removeprefix("file://"), "", "", "")


def _with(module: ModuleType, **more: object) -> ModuleType:
    """A copy of a module with more names in it."""
    copy = ModuleType(module.__name__)
    vars(copy).update(vars(module), **more)
    return copy


_PETASTORM: Final = _import_petastorm()
make_batch_reader: Final[Callable[..., Any]] = _PETASTORM.make_batch_reader
TransformSpec: Final[Callable[..., Any]] = _PETASTORM.TransformSpec
