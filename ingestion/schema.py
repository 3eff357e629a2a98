"""The contract of the events Parquet: collections, fields, units and Delphes branches.

Of the ingestion package, everything downstream (features, awkward, pandas, Spark users) relies on
these names only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

#: Version of the columns, in the metadata of the Parquet files.
SCHEMA_VERSION: Final = 4


class Field(NamedTuple):
    """One number of an event or of a particle."""

    branch: str
    """Branch of the Delphes tree that holds it."""
    dtype: str
    """NumPy dtype in the events Parquet."""
    unit: str
    """Physical unit; empty for pure numbers."""


#: The numbers of particles; the branch is the part of its name after the dot.
_MEMBERS: Final = {
    "pid": Field("PID", "int32", ""),
    "charge": Field("Charge", "int32", "e"),
    "pt": Field("PT", "float32", "GeV"),
    "et": Field("ET", "float32", "GeV"),
    "eta": Field("Eta", "float32", ""),
    "phi": Field("Phi", "float32", "rad"),
    "x": Field("X", "float32", "mm"),
    "y": Field("Y", "float32", "mm"),
    "z": Field("Z", "float32", "mm"),
    "btag": Field("BTag", "uint32", "bits"),
}


def _fields(stem: str, *members: str) -> dict[str, Field]:
    """The fields of a collection, whose branches begin with `stem`, by name."""
    return {
        name: _MEMBERS[name]._replace(branch=f"{stem}.{_MEMBERS[name].branch}") for name in members
    }


#: Jagged collections: one list per event in the Parquet, one group of jagged branches in the tree.
COLLECTIONS: Final[dict[str, dict[str, Field]]] = {
    "tracks": _fields("EFlowTrack", "pid", "charge", "pt", "eta", "phi", "x", "y", "z"),
    "photons": _fields("EFlowPhoton", "et", "eta", "phi"),
    "neutral_hadrons": _fields("EFlowNeutralHadron", "et", "eta", "phi"),
    "electrons": _fields("Electron", "pt", "eta", "phi", "charge"),
    "muons": _fields("MuonTight", "pt", "eta", "phi", "charge"),
    "jets": _fields("Jet", "pt", "eta", "phi", "btag"),
}

#: Collections of particle candidates, which an input without particle lists (`features.particles:
#: false`) may lack.
PARTICLE_COLLECTIONS: Final = ("tracks", "photons", "neutral_hadrons")

#: One number per event.
SCALARS: Final[dict[str, Field]] = {
    "met": Field("MissingET.MET", "float32", "GeV"),
    "met_phi": Field("MissingET.Phi", "float32", "rad"),
    "weight": Field("Event.Weight", "float64", ""),
}

#: Begin of the names of columns with other weights of the generator (`ingest.weights`).
WEIGHT_PREFIX: Final = "weight_"


def events_schema(pass_through: Mapping[str, str] | None = None) -> pa.Schema:
    """Arrow schema of the events Parquet; no field is nullable.

    Columns are the identity of the event (file, entry), its sample and label, numbers of the event,
    a list of structs for each collection, and `pass_through` columns, given with their types. A
    label is the index of a class in the config, not its name. The metadata of the schema have
    `columns`: JSON with unit and Delphes branch of each field.

    Examples:
        >>> [field.name for field in events_schema().field("photons").type.value_type]
        ['et', 'eta', 'phi']
    """
    types = {
        "file_uuid": pa.string(),
        "entry": pa.int64(),
        "sample": pa.string(),
        "label": pa.int64(),
    }
    descriptions: dict[str, Any] = {}
    for name, field in SCALARS.items():
        types[name] = pa.type_for_alias(field.dtype)
        descriptions[name] = _describe(field)
    for collection, fields in COLLECTIONS.items():
        types[collection] = _list_type(fields)
        descriptions[collection] = {name: _describe(field) for name, field in fields.items()}
    for name, dtype in (pass_through or {}).items():
        # A column of ours keeps its type, and its content.
        types.setdefault(name, pa.type_for_alias(dtype))
    metadata = {"schema_version": str(SCHEMA_VERSION), "columns": json.dumps(descriptions)}
    columns = [pa.field(name, data_type, nullable=False) for name, data_type in types.items()]
    return pa.schema(columns, metadata=metadata)


def _describe(field: Field) -> dict[str, str]:
    """Unit (1 for a pure number) and Delphes branch of a field, for the metadata."""
    return {"unit": field.unit or "1", "branch": field.branch}


def _list_type(fields: Mapping[str, Field]) -> pa.ListType:
    """The type of a collection: a list of structs, with the fields as members."""
    members = [
        pa.field(name, pa.type_for_alias(field.dtype), nullable=False)
        for name, field in fields.items()
    ]
    return pa.list_(pa.field("element", pa.struct(members), nullable=False))
