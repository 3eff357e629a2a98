"""The contract of the events Parquet: collections, fields, units, and the Delphes branch that each field comes from.

Of the ingestion package, everything downstream (features, awkward, pandas, Spark users) relies on these names only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

SCHEMA_VERSION: Final = 3


class Field(NamedTuple):
    """One number of an event or of a particle."""

    branch: str
    """Branch of the Delphes tree that holds it."""
    dtype: str
    """NumPy dtype in the events Parquet."""
    unit: str
    """Physical unit; empty for pure numbers."""


#: Jagged collections: one list per event in the Parquet, one group of jagged branches in the tree.
COLLECTIONS: Final[dict[str, dict[str, Field]]] = {
    "tracks": {
        "pid": Field("EFlowTrack.PID", "int32", ""),
        "charge": Field("EFlowTrack.Charge", "int32", "e"),
        "pt": Field("EFlowTrack.PT", "float32", "GeV"),
        "eta": Field("EFlowTrack.Eta", "float32", ""),
        "phi": Field("EFlowTrack.Phi", "float32", "rad"),
        "x": Field("EFlowTrack.X", "float32", "mm"),
        "y": Field("EFlowTrack.Y", "float32", "mm"),
        "z": Field("EFlowTrack.Z", "float32", "mm"),
    },
    "photons": {
        "et": Field("EFlowPhoton.ET", "float32", "GeV"),
        "eta": Field("EFlowPhoton.Eta", "float32", ""),
        "phi": Field("EFlowPhoton.Phi", "float32", "rad"),
    },
    "neutral_hadrons": {
        "et": Field("EFlowNeutralHadron.ET", "float32", "GeV"),
        "eta": Field("EFlowNeutralHadron.Eta", "float32", ""),
        "phi": Field("EFlowNeutralHadron.Phi", "float32", "rad"),
    },
    "electrons": {
        "pt": Field("Electron.PT", "float32", "GeV"),
        "eta": Field("Electron.Eta", "float32", ""),
        "phi": Field("Electron.Phi", "float32", "rad"),
        "charge": Field("Electron.Charge", "int32", "e"),
    },
    "muons": {
        "pt": Field("MuonTight.PT", "float32", "GeV"),
        "eta": Field("MuonTight.Eta", "float32", ""),
        "phi": Field("MuonTight.Phi", "float32", "rad"),
        "charge": Field("MuonTight.Charge", "int32", "e"),
    },
    "jets": {
        "pt": Field("Jet.PT", "float32", "GeV"),
        "eta": Field("Jet.Eta", "float32", ""),
        "phi": Field("Jet.Phi", "float32", "rad"),
        "btag": Field("Jet.BTag", "uint32", "bits"),
    },
}

#: Collections of particle candidates, which an input without particle lists (`features.particles: false`) may lack.
PARTICLE_COLLECTIONS: Final = ("tracks", "photons", "neutral_hadrons")

#: One number per event.
SCALARS: Final[dict[str, Field]] = {
    "met": Field("MissingET.MET", "float32", "GeV"),
    "met_phi": Field("MissingET.Phi", "float32", "rad"),
    "weight": Field("Event.Weight", "float64", ""),
}

#: Scalars that a file may lack, with the value used instead.
OPTIONAL_SCALARS: Final[dict[str, float]] = {"weight": 1.0}

#: Begin of the names of columns with other weights of the generator (`ingest.weights`).
WEIGHT_PREFIX: Final = "weight_"

#: Branches of a load-test sample that identify the origin of an event: upper and lower half of the UUID, and entry.
ORIGIN_BRANCHES: Final = ("LoadTest_origin_uuid_high", "LoadTest_origin_uuid_low", "LoadTest_origin_entry")


def events_schema(carried: Mapping[str, str] | None = None) -> pa.Schema:
    """Arrow schema of the events Parquet; nothing in it is nullable.

    Its metadata, which every reader of Parquet shows, have `columns`: JSON with unit and Delphes branch of each field.
    A label is the number of a class in the config; files of the same events serve configs with other names of classes.

    Args:
        carried: Type of each column that the user carries along (`ingest.carry`).

    Examples:
        >>> [field.name for field in events_schema().field("photons").type.value_type]
        ['et', 'eta', 'phi']
    """
    kinds = {
        "file_uuid": pa.string(),
        "entry": pa.int64(),
        # The origin, which decides the split: the event itself or, in a load-test sample, the event that it copies.
        "origin_uuid": pa.string(),
        "origin_entry": pa.int64(),
        "sample": pa.string(),
        "label": pa.int64(),
        **{name: pa.type_for_alias(field.dtype) for name, field in SCALARS.items()},
        **{name: pa.list_(pa.field("element", struct_type(name), nullable=False)) for name in COLLECTIONS},
        **{name: pa.type_for_alias(kind) for name, kind in (carried or {}).items()},
    }
    columns: dict[str, Any] = {name: _described(field) for name, field in SCALARS.items()}
    columns |= {
        collection: {name: _described(field) for name, field in fields.items()}
        for collection, fields in COLLECTIONS.items()
    }
    metadata = {"schema_version": str(SCHEMA_VERSION), "columns": json.dumps(columns)}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()], metadata=metadata)


def _described(field: Field) -> dict[str, str]:
    return {"unit": field.unit or "1", "branch": field.branch}


def carried_fields(schema: pa.Schema) -> list[pa.Field]:
    """The fields of a table of events that the user carries along."""
    own = set(events_schema().names)
    return [field for field in schema if field.name not in own]


def struct_type(collection: str) -> pa.StructType:
    """Arrow type of one element of a collection."""
    fields = COLLECTIONS[collection].items()
    return pa.struct([pa.field(name, pa.type_for_alias(field.dtype), nullable=False) for name, field in fields])
