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
from pipeline.errors import RunFolderError
from pipeline.runs.counters import IngestCounters
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version, check_output_files

#: File beside the model that names the features of the training.
_RUN: Final = "run.json"
#: Splits that a training sees: it learns from one, and the other chooses its best epoch.
_SPLITS_SEEN: Final = ("train", "val")
#: A key is a 64-bit hash of the content of an event; copies of an event have the same key. This is
#: the key of an event that has none.
_NO_EVENT: Final[UInt64s] = np.zeros(1, np.uint64)
#: No events.
NO_KEYS: Final[UInt64s] = _NO_EVENT[1:]


def count_seen(dataset: FeatureDataset, events: pa.Array, keys: UInt64s = NO_KEYS) -> int | None:
    """Count the events that a training has seen, or that are copies of events that it has seen.

    Seen are the training and validation splits of its dataset. An event is identified by
    `uuid:entry`, its ROOT file and its position there. A copy in another file has another
    identity, but the same key.

    Args:
        dataset: The features of the training.
        events: Identities of the events in question.
        keys: Their keys, each once and in ascending order; see `distinct_keys`.

    Returns:
        The number; None if it is unknown: no identity was seen, and copies cannot be excluded.
    """
    originals = _originals_of_copies(dataset.folder, keys)
    # The identities of the events themselves, and those of their ingested originals.
    original_identities = pa.array(originals or [], pa.string())
    candidates = pc.unique(pa.concat_arrays([events, original_identities]))
    is_seen = pc.is_in(candidates, value_set=identities(_seen_files(dataset)))
    num_seen: int = pc.sum(is_seen).as_py() or 0
    if originals is None and not num_seen:
        return None
    return num_seen


def count_seen_of_files(dataset: FeatureDataset, uuids: Sequence[str]) -> int:
    """Count the events of some ROOT files in the training and validation splits of a dataset.

    Copies of events in other files do not count.

    Args:
        dataset: The features of a training.
        uuids: The UUIDs of the ROOT files.
    """
    wanted_uuids = pa.array(uuids)
    num_seen = 0
    for file in _seen_files(dataset):
        file_uuids = read_parquet(file, ["file_uuid"])["file_uuid"]
        num_seen += pc.sum(pc.is_in(file_uuids, value_set=wanted_uuids)).as_py()
    return num_seen


def distinct_keys(folder: Path) -> UInt64s:
    """Return the keys of the events that have one, each once and in ascending order.

    A key is a 64-bit hash of the content of an event; see `ingestion.copies`. All files in the
    folder are read.
    """
    keys = [read_keys(path) for path in folder.iterdir()]
    # The key 0 of events without one is added, so that it surely is the first, and cut off.
    return np.unique(np.concatenate([_NO_EVENT, *keys]))[1:]


def _originals_of_copies(features: Path, keys: UInt64s) -> list[str] | None:
    """Return `uuid:entry` of the ingested events whose keys are among those of new files.

    New files hold the same events under another identity after `hadd` or a skim.

    Args:
        features: The folder of a version of `features`, in its run folder.
        keys: Keys of the events in the new files, each once and in ascending order.

    Returns:
        None if it is unknown: the ingested events are gone, or other code made their keys.
    """
    if not len(keys):
        return []
    # The folder is <run_dir>/features/<version>.
    run_dir = features.parents[1]
    manifest = StageStore(run_dir, "features").manifest_of(features.name)
    if manifest is None or "ingest" not in manifest.upstream:
        return None
    ingested = StageStore(run_dir, "ingest").version(manifest.upstream["ingest"])
    if ingested is None or not ingested.ran_same_code("ingestion.copies"):
        return None
    try:
        return _events_with_keys(ingested, keys)
    except (FileNotFoundError, RunFolderError):
        return None


def _events_with_keys(ingested: Version, keys: UInt64s) -> list[str]:
    """Return `uuid:entry` of the ingested events that have one of the keys.

    Args:
        ingested: A version of `ingest`. It stores a file of keys for each part (a range of entries
            of a ROOT file), with one key per entry.
        keys: The wanted keys, in ascending order.

    Raises:
        FileNotFoundError: A file of keys is gone.
        DamagedOutputError: A file of keys was changed.
    """
    files = {file.path: file for file in ingested.files_like(["keys/*"])}
    for file in files.values():
        if not file.exists(ingested.folder):
            raise FileNotFoundError(file.path)
    ingested.check_files(files.values())
    events = []
    for part in ingested.counters(IngestCounters).parts:
        key_file = files.get(f"keys/{part.keys_name}")
        if key_file is None:
            continue
        part_keys = read_keys(key_file.location(ingested.folder))
        # For each key of the part, this is the smallest wanted key that is not below it, or the
        # last one. Without the last key in the search, no index is beyond the end.
        nearest_keys = keys[np.searchsorted(keys[:-1], part_keys)]
        rows = np.flatnonzero(nearest_keys == part_keys)
        events += [f"{part.file_uuid}:{part.start + row}" for row in rows]
    return events


def dataset_of(training: Path) -> Path | None:
    """Return the folder of the features that a training used.

    None if it is unknown, or if files of the training or validation split are missing or damaged.
    """
    folder = _recorded_dataset(training)
    if folder is None:
        return None
    try:
        check_output_files(folder)
        dataset = FeatureDataset.load(folder)
    except (DamagedOutputError, FeatureError):
        return None
    existing = file_sizes(dataset.data)
    needed = [group.file for split in _SPLITS_SEEN for group in dataset.splits[split]]
    return folder if existing.keys() >= set(needed) else None


def copy_record(training: Path, target: Path) -> None:
    """Copy the record `run.json` of a training to another folder, if it names its features.

    The record names the features by a relative path, which is adapted to the new folder.
    """
    folder = _recorded_dataset(training)
    if folder is not None:
        record = json.loads((training / _RUN).read_text(encoding="utf-8"))
        record["dataset"] = os.path.relpath(folder, target)
        (target / _RUN).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _seen_files(dataset: FeatureDataset) -> list[Path]:
    return [file for split in _SPLITS_SEEN for file in dataset.files(split)]


def _recorded_dataset(training: Path) -> Path | None:
    """Return the folder of the features that the record of a training names; None without one.

    The recorded path is relative to the training, so that both can move together.
    """
    try:
        relative_path = json.loads((training / _RUN).read_text(encoding="utf-8"))["dataset"]
        return Path(os.path.normpath(training.absolute() / relative_path))
    except (OSError, ValueError, KeyError, TypeError):
        return None
