"""The events that a training has seen; results of the model on them mean nothing."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.schema import IDENTITY_COLUMNS, readable
from ingestion.storage import sizes_below
from pipeline.runs.store import Version

#: File beside the model that names the features of the training.
_RUN: Final = "run.json"
#: Splits that a training sees: it learns from one, and the other chooses its best epoch.
_LEARNT_FROM: Final = ("train", "val")


def count_seen(dataset: FeatureDataset, events: pa.Array) -> int:
    """Number of events (see `identities`) in the training and validation splits of a dataset."""
    seen = identities([file for split in _LEARNT_FROM for file in dataset.files(split)])
    return pc.sum(pc.is_in(events, value_set=seen)).as_py() or 0


def identities(files: Sequence[Path], *, also: Sequence[str] = ()) -> pa.Array:
    """`uuid:entry` of all rows of some features files, and further ones."""
    tables = [pq.read_table(readable(file), columns=list(IDENTITY_COLUMNS)) for file in files]
    if not tables:
        return pa.array([], pa.string())
    table = pa.concat_tables(tables)
    joined = pc.binary_join_element_wise(table["file_uuid"], table["entry"].cast(pa.string()), ":")
    joined = joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
    return pc.unique(pa.concat_arrays([joined, pa.array(also, pa.string())])) if also else joined


def originals(ingested: Version | None, keys: Sequence[Path]) -> list[str]:
    """`uuid:entry` of the ingested events that new files hold too: after `hadd` or a skim under another identity.

    Args:
        ingested: A version of `ingest`, if there is any.
        keys: Files with the keys of the new events (`ingestion.copies`).
    """
    from ingestion.spark_job import EventsPart  # noqa: PLC0415 - pyspark

    found: list[str] = []
    if ingested is None:
        return found
    new = np.concatenate([np.zeros(0, np.uint64), *map(_keys_in, keys)])
    for part in (EventsPart(**each) for each in ingested.manifest["counters"]["parts"]):
        own = _keys_in(part.keys_file(ingested.folder / "events"))
        found += [f"{part.file_uuid}:{part.start + place}" for place in np.flatnonzero((own != 0) & np.isin(own, new))]
    return found


def _keys_in(file: Path) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = np.load(io.BytesIO(file.read_bytes()))
    return keys


def dataset_of(place: Path) -> Path | None:
    """The features that a training run names; None if they are unknown or incomplete."""
    folder = _named_by(place)
    if folder is None:
        return None
    try:
        dataset = FeatureDataset.load(folder)
    except FeatureError:
        return None
    there = sizes_below(dataset.data)
    is_whole = all(group.file in there for split in _LEARNT_FROM for group in dataset.splits[split])
    return folder if is_whole else None


def copy_record(place: Path, target: Path) -> None:
    """Copy the record of a training run, with the path of its features relative to the new folder."""
    folder = _named_by(place)
    if folder is not None:
        content = json.loads((place / _RUN).read_text(encoding="utf-8"))
        content["dataset"] = os.path.relpath(folder, target)
        (target / _RUN).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _named_by(place: Path) -> Path | None:
    """The features that a record names, by a path relative to the training run, so that both can move together."""
    try:
        written = json.loads((place / _RUN).read_text(encoding="utf-8"))["dataset"]
        return Path(os.path.normpath(place.absolute() / written))
    except (OSError, ValueError, KeyError, TypeError):
        return None
