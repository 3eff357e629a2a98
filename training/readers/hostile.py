"""Refuses datasets whose code petastorm would execute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from features.dataset import FeatureDataset
from features.schema import readable
from ingestion.storage import sizes_below
from training.errors import HostileDatasetError
from training.readers.sources import reporting

_PICKLED_KEYS: Final = (b"dataset-toolkit", b"petastorm")


def refuse_pickled_schema(dataset: FeatureDataset) -> None:
    """Refuse a dataset with a pickled schema, before petastorm unpickles it.

    Raises:
        HostileDatasetError: A `_common_metadata` or `_metadata` file, or a file's own metadata, has petastorm's keys.
        DamagedDatasetError: A file is missing or is no Parquet file.
    """
    for name in sizes_below(dataset.data):
        path = dataset.data / name
        if path.name in ("_common_metadata", "_metadata"):
            _refuse_keys(path, _schema(dataset, path.parent.name, path))
    with ThreadPoolExecutor() as threads:
        for split in dataset.splits:
            files = dataset.files(split)
            for path, schema in zip(files, threads.map(partial(_schema, dataset, split), files), strict=True):
                _refuse_keys(path, schema)


def _schema(dataset: FeatureDataset, split: str, path: Path) -> pa.Schema:
    with reporting(dataset, split, f"{path.name}: "):
        return pq.read_schema(readable(path))


def _refuse_keys(path: Path, schema: pa.Schema) -> None:
    keys = [key for key in schema.metadata or {} if any(word in key for word in _PICKLED_KEYS)]
    if keys:
        raise HostileDatasetError(
            f"{path} carries a pickled petastorm schema ({keys[0].decode(errors='replace')}), which could run any code "
            f"when read. This pipeline never writes one: find out where the file comes from, then make the "
            f"features again."
        )
