"""Events as flat arrays, the input of the kernels. Event i of a collection is `[offsets[i]:offsets[i + 1]]`."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Electrons and muons that may select an event; in each event the electrons come first."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    charge: Floats
    is_electron: Floats
    """1 for an electron, 0 for a muon."""


class Jets(NamedTuple):
    """Jets with their b-tag bits."""

    offsets: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    btag: Floats


class EventArrays(NamedTuple):
    """All inputs of the features."""

    tracks: Tracks
    photons: Neutrals
    neutral_hadrons: Neutrals
    leptons: Leptons
    jets: Jets
    met: Floats
    met_phi: Floats


def events_from_arrow(table: pa.Table, flavours: Sequence[str]) -> EventArrays:
    """Flat float64 arrays of a table of events, or a slice of one, with leptons of some `flavours`, in this order."""
    neutral = ("et", "eta", "phi")
    return EventArrays(
        tracks=Tracks(*_flat(table, "tracks", Tracks._fields[1:])),
        photons=Neutrals(*_flat(table, "photons", neutral)),
        neutral_hadrons=Neutrals(*_flat(table, "neutral_hadrons", neutral)),
        leptons=_leptons(table, flavours),
        jets=Jets(*_flat(table, "jets", Jets._fields[1:])),
        met=table["met"].to_numpy().astype(np.float64),
        met_phi=table["met_phi"].to_numpy().astype(np.float64),
    )


def _leptons(table: pa.Table, flavours: Sequence[str]) -> Leptons:
    kinds = [_flat(table, f"{flavour}s", ("pt", "eta", "phi", "charge")) for flavour in flavours]
    events = [np.repeat(np.arange(table.num_rows), np.diff(offsets)) for offsets, *_ in kinds]
    is_electron = [
        np.full(len(each), float(kind == "electron"))
        for each, kind in zip(events, flavours, strict=True)
    ]
    columns = [*zip(*(fields for _, *fields in kinds), strict=True), is_electron]
    order = np.argsort(np.concatenate(events), kind="stable")
    offsets = np.sum([offsets for offsets, *_ in kinds], axis=0)
    return Leptons(offsets, *(np.concatenate(column)[order] for column in columns))


def _flat(table: pa.Table, collection: str, fields: tuple[str, ...]) -> list[NDArray[Any]]:
    """Offsets that begin at 0, and one flat array per field."""
    lists = table[collection].combine_chunks()
    offsets = lists.offsets.to_numpy().astype(np.int64)
    # flatten(), unlike .values and .field(), honours slices.
    structs = lists.flatten()
    members = dict(zip([field.name for field in structs.type], structs.flatten(), strict=True))
    return [offsets - offsets[0], *(members[name].to_numpy().astype(np.float64) for name in fields)]
