"""Writes detected events as a ROOT file like Delphes': a TTree `Delphes` of jagged branches such as `Jet.PT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import uproot
import xxhash

from ingestion.storage import new_file
from ingestion.thresholds import Jagged


def write_delphes(path: Path, collections: Mapping[str, Jagged], identity: UUID) -> None:
    """Write a file; it has its name only when it is complete and flushed to disk.

    Args:
        path: The file.
        collections: The candidates by the names of the branches; all have the same number of events.
        identity: UUID of the file: equal events of another run have the same.
    """
    columns = {name: each.listed() for name, each in collections.items()}
    with (
        new_file(path, flushed=True) as unfinished,
        uproot.recreate(unfinished, compression=uproot.ZLIB(1), uuid_function=lambda: identity) as file,
    ):
        tree = file.mktree(
            "Delphes",
            {name: column.type.content for name, column in columns.items()},
            counter_name=lambda name: f"{name}_size",
            field_name=lambda outer, inner: f"{outer}.{inner}",
        )
        tree.extend(columns)


def first_events(parts: Sequence[Mapping[str, Jagged]], number: int) -> dict[str, Jagged]:
    """The first events of several blocks, one after the other."""
    found = {}
    for name, first in parts[0].items():
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part[name].offsets) for part in parts)])
        offsets = np.cumsum(counts)[: number + 1]
        whole = {field: np.concatenate([part[name].fields[field] for part in parts]) for field in first.fields}
        found[name] = Jagged(offsets, {field: column[: offsets[-1]] for field, column in whole.items()})
    return found


def content_of(collections: Mapping[str, Jagged]) -> str:
    """Digest of all numbers, the same for equal events."""
    digest = xxhash.xxh3_64()
    for name, each in sorted(collections.items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(each.offsets).tobytes())
        for field, column in sorted(each.fields.items()):
            digest.update(field.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
