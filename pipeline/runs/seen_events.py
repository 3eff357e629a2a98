"""The events that a training has seen; results of the model on them mean nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.schema import identities
from hep_core.checked_parquet import read_parquet
from hep_core.integrity import DamagedOutputError
from hep_core.storage import file_sizes
from ingestion.copies import UInt64s, read_keys
from pipeline.runs.store import StageStore, Version, verify_below

#: File beside the model that names the features of the training.
_RUN: Final = "run.json"
#: Splits that a training sees: it learns from one, and the other chooses its best epoch.
_LEARNT_FROM: Final = ("train", "val")
#: The key of an event that has none.
_NO_EVENT: Final[UInt64s] = np.zeros(1, np.uint64)
#: No events.
NO_KEYS: Final[UInt64s] = _NO_EVENT[1:]


def count_seen(dataset: FeatureDataset, events: pa.Array, keys: UInt64s = NO_KEYS) -> int | None:
    """Number of events in the training and validation splits of a dataset, also those that are copies of others there.

    Copies are known by their `keys`; see `distinct_keys`.

    Returns:
        None if it holds none of the identities, and may hold copies.
    """
    copied = _originals(dataset.folder, keys)
    seen = identities(_learnt_from(dataset))
    events = pc.unique(pa.concat_arrays([events, pa.array(copied or (), pa.string())]))
    found = pc.sum(pc.is_in(events, value_set=seen)).as_py() or 0
    return None if copied is None and not found else found


def count_seen_of(dataset: FeatureDataset, uuids: Sequence[str]) -> int:
    """Number of events of some ROOT files in the training and validation splits of a dataset, copies not counted."""
    columns = [read_parquet(file, ["file_uuid"])["file_uuid"] for file in _learnt_from(dataset)]
    return sum(pc.sum(pc.is_in(each, value_set=pa.array(uuids))).as_py() for each in columns)


def distinct_keys(folder: Path) -> UInt64s:
    """The keys of the events that have one (`ingestion.copies`), each once and in order."""
    return np.unique(np.concatenate([_NO_EVENT, *map(read_keys, folder.iterdir())]))[1:]


def _originals(features: Path, keys: UInt64s) -> list[str] | None:
    """`uuid:entry` of the ingested events that new files hold too: after `hadd` or a skim under another identity.

    Returns:
        None if it is unknown: the ingested events are gone, or other code made their keys.
    """
    found: list[str] = []
    if not len(keys):
        return found
    run_dir = features.parents[1]
    made_from = StageStore(run_dir, "features").manifest_of(features.name) or {}
    store, name = StageStore(run_dir, "ingest"), made_from.get("upstream", {}).get("ingest", "")
    ingested = Version(name, store.folder / name, store.manifest_of(name) or {})
    try:
        if not ingested.ran_same_code("ingestion.copies"):
            return None
        files = ingested.files_like(["keys/*"])
        if not all(file.is_there(ingested.folder) for file in files):
            return None
        ingested.refuse_damage(files)
        for file in files:
            uuid, _, start = Path(file.path).stem.rpartition("-")
            ingested_keys = read_keys(file.place(ingested.folder))
            places = np.flatnonzero(
                keys[np.searchsorted(keys[:-1], ingested_keys)] == ingested_keys
            )
            found += [f"{uuid}:{int(start) + place}" for place in places]
    except (FileNotFoundError, KeyError):
        return None
    return found


def dataset_of(place: Path) -> Path | None:
    """The features that a training run names; None if they are unknown, incomplete or damaged."""
    folder = _named_by(place)
    if folder is None:
        return None
    try:
        verify_below(folder)
        dataset = FeatureDataset.load(folder)
    except (DamagedOutputError, FeatureError):
        return None
    there = file_sizes(dataset.data)
    is_whole = all(group.file in there for split in _LEARNT_FROM for group in dataset.splits[split])
    return folder if is_whole else None


def copy_record(place: Path, target: Path) -> None:
    """Copy the record of a training run, with the path of its features relative to the new folder."""
    folder = _named_by(place)
    if folder is not None:
        content = json.loads((place / _RUN).read_text(encoding="utf-8"))
        content["dataset"] = os.path.relpath(folder, target)
        (target / _RUN).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _learnt_from(dataset: FeatureDataset) -> list[Path]:
    return [file for split in _LEARNT_FROM for file in dataset.files(split)]


def _named_by(place: Path) -> Path | None:
    """The features that a record names, by a path relative to the training run, so that both can move together."""
    try:
        written = json.loads((place / _RUN).read_text(encoding="utf-8"))["dataset"]
        return Path(os.path.normpath(place.absolute() / written))
    except (OSError, ValueError, KeyError, TypeError):
        return None
