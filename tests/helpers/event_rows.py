"""Events made by hand for tests: rows of the events Parquet as dicts, and the table of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ingestion.schema import COLLECTIONS, events_schema

Row = dict[str, Any]
_numbers = itertools.count(1)


def event_row(**overrides: Any) -> Row:
    """A valid event without candidates, leptons and jets, but for the given fields."""
    event: Row = {
        "file_uuid": "00000000-0000-0000-0000-000000000000",
        "entry": 0,
        "sample": "made",
        "label": 0,
        "met": 50.0,
        "met_phi": 0.0,
        "weight": 1.0,
        **{name: [] for name in COLLECTIONS},
    }
    unknown = sorted(set(overrides) - set(event))
    if unknown:
        raise KeyError(f"not in the events schema: {unknown}")
    return event | overrides


def distinct(events: Sequence[Row]) -> list[Row]:
    """The events, each with a MET of its own: ingest takes equal events for copies."""
    return [{**event, "met": event["met"] + next(_numbers) / 1024} for event in events]


def events_table(events: list[Row]) -> pa.Table:
    """The table of some events; numbers are rounded to the schema's types."""
    return pa.Table.from_pylist(events, schema=events_schema())


def track(
    pt: float,
    eta: float,
    phi: float,
    *,
    charge: int = 1,
    pid: int = 211,
    vertex: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Row:
    """A track, by default of a positive pion from the origin."""
    x, y, z = vertex
    return {"pid": pid, "charge": charge, "pt": pt, "eta": eta, "phi": phi, "x": x, "y": y, "z": z}


def tower(et: float, eta: float, phi: float) -> Row:
    """A photon or a neutral hadron."""
    return {"et": et, "eta": eta, "phi": phi}


def lepton(pt: float, eta: float, phi: float, *, charge: int = -1) -> Row:
    """An electron or a muon, negative by default."""
    return {"pt": pt, "eta": eta, "phi": phi, "charge": charge}


def jet(pt: float, eta: float, phi: float, *, btag: int = 0) -> Row:
    """A jet, by default without any b-tag bit."""
    return {"pt": pt, "eta": eta, "phi": phi, "btag": btag}
