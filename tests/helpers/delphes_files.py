"""Delphes-like ROOT files made of hand-made events, for tests of ingestion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import awkward as ak
import numpy as np
import pytest
import uproot
from event_rows import Row

from ingestion.baskets import basket_boundaries, chunk_edges
from ingestion.file_info import FileInfo
from ingestion.files import SourceFile, inventory
from ingestion.reader import RawEvents, read_events
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS, SCALARS
from ingestion.selection import Selection, select_events
from ingestion.settings import IngestSettings, SampleSettings


def write_delphes(
    path: Path,
    events: Sequence[Row],
    *,
    tree: str = "Delphes",
    rename: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
    more: Mapping[str, np.ndarray[Any, Any] | ak.Array] | None = None,
    baskets: Sequence[int] = (),
    as_type: Mapping[str, tuple[str, float]] | None = None,
    flat_scalars: bool = False,
    **options: Any,
) -> Path:
    """Write a ROOT file with one tree; returns its path.

    Args:
        path: Where to.
        events: Rows as `event_rows.event_row` makes them.
        tree: Its name.
        rename: Delphes branch name to the name written.
        without: Delphes branch names to leave out.
        more: Further branches, or other content of those.
        baskets: Numbers of events of the baskets; one of all by default.
        as_type: Delphes branch name to another dtype and the value that every candidate gets.
        flat_scalars: Write MET and weight as plain numbers instead of lists of one.
        options: Those of `uproot.recreate`.
    """
    names = rename or {}
    columns = columns_of(events, as_type=as_type, flat_scalars=flat_scalars)
    branches = {}
    for branch, values in columns.items():
        if branch not in without:
            name = names.get(branch, branch)
            branches[name] = values
    branches |= more or {}
    with uproot.recreate(path, **options) as file:
        writable = file.mktree(tree, kinds_of(branches))
        if events:
            edges = np.cumsum([0, *(baskets or [len(events)])]).tolist()
            for start, stop in pairwise(edges):
                writable.extend({name: values[start:stop] for name, values in branches.items()})
    return path


#: The branches of the particles: tracks, photons and neutral hadrons.
PARTICLE_BRANCHES: Final = tuple(
    field.branch for name in PARTICLE_COLLECTIONS for field in COLLECTIONS[name].values()
)


def damage(path: Path, branch: str = "EFlowTrack.PT", *, tree: str = "Delphes") -> Path:
    """Overwrite the last basket of a branch: the file opens, but cannot be read to its end."""
    with uproot.open({path: tree}) as events:
        members = events[branch].all_members
        last = int(events[branch].num_baskets) - 1
        start = int(members["fBasketSeek"][last])
        length = int(members["fBasketBytes"][last])
    file_bytes = bytearray(path.read_bytes())
    file_bytes[start : start + length] = b"\xff" * length
    path.write_bytes(file_bytes)
    return path


def columns_of(
    events: Sequence[Row],
    *,
    as_type: Mapping[str, tuple[str, float]] | None = None,
    flat_scalars: bool = False,
) -> dict[str, Any]:
    """The branches of a Delphes file of some events; see `write_delphes`."""
    changed_types = as_type or {}
    columns: dict[str, Any] = {}
    for collection, fields in COLLECTIONS.items():
        lengths = [len(event[collection]) for event in events]
        offsets = np.cumsum([0, *lengths])
        candidates = [candidate for event in events for candidate in event[collection]]
        for name, field in fields.items():
            values: Any = np.array([candidate[name] for candidate in candidates], field.dtype)
            if field.branch in changed_types:
                dtype, constant = changed_types[field.branch]
                values = np.full(len(candidates), constant, dtype)
            columns[field.branch] = jagged(offsets, values)
    for name, field in SCALARS.items():
        scalars: Any = np.array([event[name] for event in events], dtype=field.dtype)
        if not flat_scalars:
            scalars = jagged(np.arange(len(events) + 1), scalars)
        columns[field.branch] = scalars
    return columns


def ntuple_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """The fields of an RNTuple of events: a record for each collection, and single numbers."""
    branches = columns_of(rows, flat_scalars=True)
    columns: dict[str, Any] = {
        "MissingET_MET": branches["MissingET.MET"],
        "MissingET_Phi": branches["MissingET.Phi"],
        "Weight": branches["Event.Weight"],
    }
    for fields in COLLECTIONS.values():
        members = {}
        for field in fields.values():
            stem, member = field.branch.split(".")
            members[member] = branches[field.branch]
        columns[stem] = ak.zip(members)
    return columns


def kinds_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The types of branches, as `mktree` takes them."""
    types = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            types[name] = np.dtype((column.dtype, column.shape[1:]))
        else:
            types[name] = column.type.content
    return types


def jagged(offsets: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> ak.Array:
    """One list per event."""
    return ak.Array(
        ak.contents.ListOffsetArray(ak.index.Index64(offsets), ak.contents.NumpyArray(values))
    )


def checked_files(
    *paths: Path | str,
    settings: IngestSettings | None = None,
    needs_particles: bool = True,
    **stated: Any,
) -> list[FileInfo]:
    """The files of the sample `made` of class 0, with what else it states."""
    sources = [
        source_of("made", 0, str(path), **stated)._replace(needs_particles=needs_particles)
        for path in paths
    ]
    return inventory(sources, settings or IngestSettings()).infos


def read_raw_events(
    file: FileInfo | Path, settings: IngestSettings | None = None, **stated: Any
) -> RawEvents:
    """All entries of a file, as one piece."""
    settings = settings or IngestSettings()
    info = (
        file if isinstance(file, FileInfo) else checked_files(file, settings=settings, **stated)[0]
    )
    (raw,) = read_events(info, settings, start=0, stop=info.entries)
    return raw


def select(
    file: FileInfo | Path, settings: IngestSettings | None = None, **stated: Any
) -> Selection:
    """What ingest takes of a file."""
    settings = settings or IngestSettings()
    info = (
        file if isinstance(file, FileInfo) else checked_files(file, settings=settings, **stated)[0]
    )
    return select_events(read_raw_events(info, settings), info, settings)


def source_of(sample: str, label: int, path: str, **stated: Any) -> SourceFile:
    """A file of a sample, with what else the sample states."""
    return SourceFile(SampleSettings(name=sample, label=label, files=[path], **stated), path)


def read_in_pieces(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Read files in pieces of about this number of entries from now on."""

    def edges(branches: Sequence[Any], start: int, stop: int) -> list[int]:
        return chunk_edges(basket_boundaries(branches), start, stop, entries)

    monkeypatch.setattr("ingestion.reader.piece_edges", edges)
