"""Writes detected events as a ROOT file like Delphes': a TTree `Delphes` of jagged branches such as `Jet.PT`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import awkward as ak
import numpy as np
import uproot
import xxhash

from ingestion.generation.detector import Collection

TREE = "Delphes"


def write_delphes(path: Path, collections: Mapping[str, Collection], identity: UUID) -> None:
    """Write a file; it has its name only when it is complete and flushed to disk.

    Args:
        path: The file.
        collections: The candidates by the names of the branches; all have the same number of events.
        identity: UUID of the file: equal events of another run have the same.
    """
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with uproot.recreate(unfinished, compression=uproot.ZLIB(1), uuid_function=lambda: identity) as file:
            columns = {name: _records(each) for name, each in collections.items()}
            kinds = {name: column.type.content for name, column in columns.items()}
            tree = file.mktree(
                TREE,
                kinds,
                counter_name=lambda name: f"{name}_size",
                field_name=lambda outer, inner: f"{outer}.{inner}",
            )
            tree.extend(columns)
        with unfinished.open("rb+") as written:
            os.fsync(written.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _records(collection: Collection) -> ak.Array:
    contents = [ak.contents.NumpyArray(column) for column in collection.columns.values()]
    record = ak.contents.RecordArray(contents, list(collection.columns))
    return ak.Array(ak.contents.ListOffsetArray(ak.index.Index64(collection.offsets), record))


def joined_collections(parts: Sequence[Mapping[str, Collection]]) -> dict[str, Collection]:
    """The collections of several blocks of events, one after the other."""
    found = {}
    for name, first in parts[0].items():
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part[name].offsets) for part in parts)])
        columns = {each: np.concatenate([part[name].columns[each] for part in parts]) for each in first.columns}
        found[name] = Collection(np.cumsum(counts), columns)
    return found


def first_events(collections: Mapping[str, Collection], number: int) -> dict[str, Collection]:
    """The first events of a block."""
    return {
        name: Collection(
            each.offsets[: number + 1],
            {field: column[: each.offsets[number]] for field, column in each.columns.items()},
        )
        for name, each in collections.items()
    }


def content_of(collections: Mapping[str, Collection]) -> str:
    """Digest of all numbers, the same for equal events."""
    digest = xxhash.xxh3_64()
    for name, each in sorted(collections.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(each.offsets).tobytes())
        for field, column in sorted(each.columns.items()):
            digest.update(field.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
