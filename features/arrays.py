"""Events as flat arrays, the input of the kernels. Event i of a collection is `[offsets[i]:offsets[i + 1]]`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
    """Electrons or muons."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    charge: Floats


class Jets(NamedTuple):
    """Jets with their b-tag bits."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    btag: Indices


class EventArrays(NamedTuple):
    """All inputs of the features."""

    tracks: Tracks
    photons: Neutrals
    neutral_hadrons: Neutrals
    electrons: Leptons
    muons: Leptons
    jets: Jets
    met: Floats
    met_phi: Floats


def events_from_arrow(table: pa.Table) -> EventArrays:
    """Flat float64 arrays of a table in the schema `ingestion.schema.events_schema()`, or of a slice of one."""
    neutral = ("et", "eta", "phi")
    lepton = ("pt", "eta", "phi", "charge")
    return EventArrays(
        tracks=Tracks(*_flat(table, "tracks", ("pid", "pt", "eta", "phi", "charge", "x", "y", "z"))),
        photons=Neutrals(*_flat(table, "photons", neutral)),
        neutral_hadrons=Neutrals(*_flat(table, "neutral_hadrons", neutral)),
        electrons=Leptons(*_flat(table, "electrons", lepton)),
        muons=Leptons(*_flat(table, "muons", lepton)),
        jets=Jets(*_flat(table, "jets", ("pt", "eta", "phi", "btag"), integers=("btag",))),
        met=table["met"].to_numpy().astype(np.float64),
        met_phi=table["met_phi"].to_numpy().astype(np.float64),
    )


def _flat(
    table: pa.Table, collection: str, fields: tuple[str, ...], *, integers: tuple[str, ...] = ()
) -> list[NDArray[Any]]:
    """Offsets that begin at 0, and one flat array per field."""
    column = table[collection].combine_chunks()
    lists = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    offsets = lists.offsets.to_numpy().astype(np.int64)
    # flatten(), unlike .values and .field(), honours slices.
    structs = lists.flatten()
    members = dict(zip([field.name for field in structs.type], structs.flatten(), strict=True))
    return [
        offsets - offsets[0],
        *(members[name].to_numpy().astype(np.int64 if name in integers else np.float64) for name in fields),
    ]
