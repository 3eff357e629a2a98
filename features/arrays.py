"""Events as flat arrays, the input of the kernels.

The candidates of event i lie at `[offsets[i]:offsets[i + 1]]` of the arrays of their collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.errors import DatasetError

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


class Tracks(NamedTuple):
    """Charged particles: GeV, radians, mm, units of e."""

    offsets: Indices
    pid: Floats
    pt: Floats
    eta: Floats
    phi: Floats
    charge: Floats
    x: Floats
    y: Floats
    z: Floats


class Neutrals(NamedTuple):
    """Photons or neutral hadrons; massless, so pT is ET [GeV]."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats


class Leptons(NamedTuple):
    """Electrons and muons that may select an event; in each event the electrons come first."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    charge: Floats
    is_electron: Floats
    """1 for an electron, 0 for a muon."""


class Jets(NamedTuple):
    """Jets with their b-tag bits, whole numbers as floats: GeV, radians."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    btag: Floats


class EventArrays(NamedTuple):
    """All inputs of the features; the missing energy, (num_events,), in GeV and radians."""

    tracks: Tracks
    photons: Neutrals
    neutral_hadrons: Neutrals
    leptons: Leptons
    jets: Jets
    met: Floats
    met_phi: Floats


def events_from_arrow(table: pa.Table, flavours: Sequence[str]) -> EventArrays:
    """Flatten a table of events, or a slice of one, to float64 arrays.

    Only leptons of the `flavours` (`electron`, `muon`) are read; in each event they have the order
    of the flavours.

    Raises:
        DatasetError: A column or a field is missing, or has empty values.
    """
    tower_fields = ("et", "eta", "phi")
    tracks = Tracks(*_flat_fields(table, "tracks", Tracks._fields[1:]))
    photons = Neutrals(*_flat_fields(table, "photons", tower_fields))
    neutral_hadrons = Neutrals(*_flat_fields(table, "neutral_hadrons", tower_fields))
    leptons = _leptons(table, flavours)
    jets = Jets(*_flat_fields(table, "jets", Jets._fields[1:]))
    met = _float64(_column(table, "met"))
    met_phi = _float64(_column(table, "met_phi"))
    return EventArrays(tracks, photons, neutral_hadrons, leptons, jets, met, met_phi)


def offsets_from_counts(counts: NDArray[np.integer[Any]]) -> Indices:
    """Offsets (num_events + 1,) from the number of candidates of each event (num_events,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _leptons(table: pa.Table, flavours: Sequence[str]) -> Leptons:
    """Join electrons and muons event by event.

    Each lepton gets the number of its event, and a stable sort by this number puts the leptons of
    an event side by side. It does what awkward, whose import takes a third of a second in each
    Spark worker, would do by:

        electrons["is_electron"] = 1.0
        muons["is_electron"] = 0.0
        leptons = ak.concatenate([electrons, muons], axis=1)
    """
    offsets = np.zeros(table.num_rows + 1, dtype=np.int64)
    event_numbers = np.arange(table.num_rows)
    lepton_fields = ("pt", "eta", "phi", "charge")
    rows_by_flavour = []
    for flavour in flavours:
        flavour_offsets, *columns = _flat_fields(table, f"{flavour}s", lepton_fields)
        offsets += flavour_offsets
        num_leptons = np.diff(flavour_offsets)
        event = np.repeat(event_numbers, num_leptons)
        is_electron = np.full(len(event), float(flavour == "electron"))
        rows_by_flavour.append(np.stack([event, *columns, is_electron]))

    leptons = np.concatenate(rows_by_flavour, axis=1)
    # The stable sort keeps the order of the flavours within an event.
    by_event = np.argsort(leptons[0], kind="stable")
    # A row of the result lies in one piece, also without leptons: kernels are compiled for that.
    fields = np.take(leptons[1:], by_event, axis=1)
    return Leptons(offsets, *fields)


def _flat_fields(table: pa.Table, collection: str, fields: tuple[str, ...]) -> list[NDArray[Any]]:
    """Offsets (num_events + 1,) that begin at 0, and one flat float64 array for each field.

    `fields` are the numbers of candidates to read from the column of lists `collection`.
    """
    lists = _column(table, collection)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]
    # flatten(), unlike .values and .field(), respects slices.
    candidates = lists.flatten()
    _check_no_nulls(candidates, collection)
    names = [field.name for field in candidates.type]
    columns = dict(zip(names, candidates.flatten(), strict=True))
    arrays = []
    for field in fields:
        if field not in columns:
            raise _missing(f"{collection}.{field}")
        _check_no_nulls(columns[field], f"{collection}.{field}")
        arrays.append(_float64(columns[field]))
    return [offsets, *arrays]


def _column(table: pa.Table, name: str) -> pa.Array:
    """A column of the events as one array; DatasetError if it is missing or has empty values."""
    if name not in table.schema.names:
        raise _missing(name)
    column = table[name].combine_chunks()
    _check_no_nulls(column, name)
    return column


def _missing(name: str) -> DatasetError:
    """The error for a column, or the field of a collection, that the events lack."""
    return DatasetError(
        f"the events have no '{name}'. Give all columns of the events Parquet; a collection "
        "without candidates has empty lists."
    )


def _check_no_nulls(column: pa.Array, name: str) -> None:
    """Raise a DatasetError if values are empty: no number, and no list, follows from them."""
    if column.null_count:
        raise DatasetError(
            f"'{name}' of the events has {column.null_count} empty values. Leave these events or "
            "candidates out, or give a number or an empty list."
        )


def _float64(column: pa.Array) -> Floats:
    """The numbers of a column without nulls, as a new array."""
    numbers: Floats = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers
