"""Files of the features dataset: what every reader refuses, and how errors of reading are said."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from features.dataset import FeatureDataset
from features.errors import DatasetError
from features.schema import readable
from ingestion.errors import IngestionError, remote_error
from ingestion.storage import is_remote, sizes_below
from training.errors import DamagedDatasetError, HostileDatasetError

_PICKLED_KEYS: Final = (b"dataset-toolkit", b"petastorm")
#: Errors of petastorm, pyarrow, NumPy and features for a file that is damaged or has other columns.
_READ_ERRORS: Final = (
    *(OSError, pa.ArrowException, KeyError, ValueError, RuntimeError, TypeError, AttributeError),
    DatasetError,
)


def refuse_pickled_schema(dataset: FeatureDataset) -> None:
    """Refuse a dataset with a pickled schema, before petastorm unpickles it.

    Raises:
        HostileDatasetError: A `_common_metadata` or `_metadata` file, or a file's own metadata, has petastorm's keys.
        DamagedDatasetError: A file is missing or is no Parquet file.
    """
    files = {path: split for split in dataset.splits for path in dataset.files(split)}
    common = [dataset.data / name for name in sizes_below(dataset.data)]
    files |= {path: path.parent.name for path in common if path.name in ("_common_metadata", "_metadata")}
    with ThreadPoolExecutor() as threads:
        for path, keys in zip(files, threads.map(partial(_keys, dataset), files, files.values()), strict=True):
            for key in keys:
                if any(word in key for word in _PICKLED_KEYS):
                    raise HostileDatasetError(
                        f"{path} carries a pickled petastorm schema ({key.decode(errors='replace')}), which could run "
                        f"any code when read. This pipeline never writes one: find out where the file comes from, then "
                        f"make the features again."
                    )


def _keys(dataset: FeatureDataset, path: Path, split: str) -> list[bytes]:
    """The keys of a file's metadata."""
    with reporting(dataset, split, f"{path.name}: "):
        return list(pq.read_schema(readable(path)).metadata or {})


@contextmanager
def reporting(dataset: FeatureDataset, split: str, where: str = "") -> Iterator[None]:
    """Turn errors of reading a split into those of its server, or of its files; others stay as they are.

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
