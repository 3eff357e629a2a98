"""The events that a training has seen; results of the model on them mean nothing."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from features.dataset import FeatureDataset
from features.errors import FeatureError
from features.schema import identities
from hep_core.checked_parquet import read_parquet
from hep_core.integrity import DamagedOutputError
from hep_core.storage import file_sizes
from ingestion.copies import read_stored_keys
from pipeline.errors import RunFolderError
from pipeline.runs.counters import IngestCounters, IngestedPart
from pipeline.runs.event_keys import NO_KEYS, CopyKeys, are_among, join_ranges, rows_with_keys
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version, check_output_files

#: File beside the model that names the features of the training.
_RUN: Final = "run.json"
#: Splits that a training sees: it learns from one, and the other chooses its best epoch.
_SPLITS_SEEN: Final = ("train", "val")


def count_seen(dataset: FeatureDataset, events: pa.Array, keys: CopyKeys = NO_KEYS) -> int | None:
    """Count the events that a training has seen, or that are copies of events that it has seen.

    Seen are the training and validation splits of its dataset. An event is identified by
    `uuid:entry`, its ROOT file and its position there. A copy in another file has another
    identity, but the same content, or the same numbers of run and event.

    Args:
        dataset: The features of the training.
        events: Identities of the events in question.
        keys: The keys of all events in their files.

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
    counts = _counts_by_uuid(tuple(_seen_files(dataset)))
    return sum(counts[uuid] for uuid in set(uuids))


@lru_cache(maxsize=8)
def _counts_by_uuid(files: tuple[Path, ...]) -> Counter[str]:
    """Count the events of each ROOT file in some features files.

    The files of a version never change, so they are read once for all calls of `predict`.
    """
    counts: Counter[str] = Counter()
    for file in files:
        file_uuids = read_parquet(file, ["file_uuid"])["file_uuid"]
        for group in pc.value_counts(file_uuids).to_pylist():
            counts[group["values"]] += group["counts"]
    return counts


def _originals_of_copies(features: Path, keys: CopyKeys) -> list[str] | None:
    """Return `uuid:entry` of the ingested events that are also among those of new files.

    New files hold the same events under another identity after `hadd` or a skim.

    Args:
        features: The folder of a version of `features`, in its run folder.
        keys: Keys of the events in the new files.

    Returns:
        None if it is unknown: the ingested events are gone, or other code made their keys.
    """
    if not len(keys.content) and not len(keys.numbered.events):
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


def _events_with_keys(ingested: Version, keys: CopyKeys) -> list[str]:
    """Return `uuid:entry` of the ingested events that have some of the keys.

    Args:
        ingested: A version of `ingest`. It stores a file of keys for each part (a range of entries
            of a ROOT file), with one key per entry.
        keys: The wanted keys.

    Raises:
        FileNotFoundError: A file of keys is gone.
        DamagedOutputError: A file of keys was changed.
    """
    wanted_numbers = np.unique(keys.numbered.events["numbers"])
    uuids = []
    ranges = []
    entries = [np.zeros(0, np.int64)]
    for part, stored in _stored_keys_of_parts(ingested):
        has_content = are_among(stored["content"], keys.content)
        # All events of a shared number are needed to say whether the files hold the same events.
        has_number = are_among(stored["numbers"], wanted_numbers)
        positions = np.flatnonzero(has_content | has_number)
        uuids.append(part.file_uuid)
        ranges.append(stored[positions])
        entries.append(part.start + positions)
    candidates = join_ranges(uuids, ranges)
    rows = rows_with_keys(candidates, keys)
    distinct_uuids = list(dict.fromkeys(uuids))
    seen_entries = np.concatenate(entries)[rows]
    seen_files = candidates.files[rows]
    identities_of_events = []
    for file, entry in zip(seen_files.tolist(), seen_entries.tolist(), strict=True):
        identities_of_events.append(f"{distinct_uuids[file]}:{entry}")
    return identities_of_events


def _stored_keys_of_parts(ingested: Version) -> Iterator[tuple[IngestedPart, NDArray[Any]]]:
    """Yield the ranges of entries of a version of `ingest`, with their keys as `STORED`.

    The ranges of one ROOT file follow each other.

    Raises:
        FileNotFoundError: A file of keys is gone.
        DamagedOutputError: A file of keys was changed.
    """
    key_files = {file.path: file for file in ingested.files_like(["keys/*"])}
    for file in key_files.values():
        if not file.exists(ingested.folder):
            raise FileNotFoundError(file.path)
    ingested.check_files(key_files.values())
    # With `label_by`, the parts of several classes share a range and its file of keys.
    part_by_name = {part.keys_name: part for part in ingested.counters(IngestCounters).parts}
    for name in sorted(part_by_name):
        key_file = key_files.get(f"keys/{name}")
        if key_file is not None:
            yield part_by_name[name], read_stored_keys(key_file.location(ingested.folder))


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
