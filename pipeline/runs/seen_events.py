"""Which events a training has seen: a model says nothing about those."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.schema import IDENTITY_COLUMNS

#: What a training leaves beside the model, and where its data are named in there.
_RUN: Final = "run.json"
#: Splits that a training sees: one it learns from, by the other its best epoch is chosen.
_LEARNT_FROM: Final = ("train", "val")


def count_seen(dataset: FeatureDataset, events: pa.Array) -> int:
    """How many of some events (see `identities`) a training on this dataset learns from, or is chosen by."""
    seen = identities([file for split in _LEARNT_FROM for file in dataset.files(split)])
    return pc.sum(pc.is_in(events, value_set=seen)).as_py() or 0


def identities(files: Sequence[Path]) -> pa.Array:
    """`uuid:entry` of all rows of some features files."""
    tables = [pq.read_table(file, columns=list(IDENTITY_COLUMNS)) for file in files]
    if not tables:
        return pa.array([], pa.string())
    table = pa.concat_tables(tables)
    joined = pc.binary_join_element_wise(table["file_uuid"], table["entry"].cast(pa.string()), ":")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def dataset_of(place: Path) -> Path | None:
    """The features that a training run names, if they are there, whole."""
    folder = _named_by(place)
    if folder is None:
        return None
    try:
        dataset = FeatureDataset.load(folder)
    except FeatureError:
        return None
    is_whole = all(file.is_file() for split in _LEARNT_FROM for file in dataset.files(split))
    return folder if is_whole else None


def copy_record(place: Path, target: Path) -> None:
    """Copy what a training run says of itself, if it names its features, which it then names from the new folder."""
    folder = _named_by(place)
    if folder is not None:
        content = json.loads((place / _RUN).read_text(encoding="utf-8"))
        content["dataset"] = os.path.relpath(folder, target)
        (target / _RUN).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _named_by(place: Path) -> Path | None:
    """The path of the features is relative to the training run, so that both may be moved together."""
    try:
        written = json.loads((place / _RUN).read_text(encoding="utf-8"))["dataset"]
        return Path(os.path.normpath(place.absolute() / written))
    except (OSError, ValueError, KeyError, TypeError):
        return None
