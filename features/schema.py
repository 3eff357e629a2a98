"""The file format of the features Parquet: its splits, the identity of its rows, its Arrow types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from features.columns import COLUMNS
from hep_core.checked_parquet import read_parquet
from ingestion.schema import WEIGHT_PREFIX

SPLITS: Final = ("train", "val", "test")
#: Begin of the names of the columns with other weights of the generator.
OTHER_WEIGHTS: Final = WEIGHT_PREFIX
#: Number of the training split.
TRAIN: Final = 0

#: Columns that identify the event of a row; models never use them.
IDENTITY_COLUMNS: Final = ("file_uuid", "entry")


def features_schema(pass_through: Sequence[pa.Field] = ()) -> pa.Schema:
    """Arrow schema of the features Parquet; values are unscaled, nothing is nullable.

    Pass-through columns of the user come last.
    """
    fields = []
    for column in COLUMNS.values():
        kind = pa.type_for_alias(column.dtype)
        if column.is_list:
            kind = pa.list_(pa.field("element", kind, nullable=False))
        fields.append(pa.field(column.name, kind, nullable=False))
    return pa.schema([*fields, *pass_through])


def identities(files: Iterable[Path]) -> pa.Array:
    """`uuid:entry` of all rows of some features files."""
    found = [identities_in(read_parquet(file, IDENTITY_COLUMNS)) for file in files]
    return pa.chunked_array(found, pa.string()).combine_chunks()


def identities_in(rows: pa.Table) -> pa.Array:
    """`uuid:entry` of each row of events or features."""
    return pc.binary_join_element_wise(
        rows["file_uuid"], rows["entry"].cast(pa.string()), ":"
    ).combine_chunks()


def stated_settings(schema: pa.Schema) -> dict[str, Any]:
    """The settings that features were made with, by key of the config; empty for tables that do not say so."""
    found: dict[str, Any] = json.loads((schema.metadata or {}).get(b"settings", b"{}"))
    return found


def described(
    schema: pa.Schema, classes: Sequence[str], settings: Mapping[str, Any] | None = None
) -> pa.Schema:
    """A schema with metadata that every reader of Parquet shows: the classes, and the meaning of all columns.

    `classes` is the JSON list of the classes in the order of the labels; `columns` is JSON: unit and definition of each
    column, from the column table; `settings`, if given, those of `stated_settings`.
    """
    columns = {
        name: {"unit": column.unit, "definition": column.meaning}
        for name, column in COLUMNS.items()
        if name in schema.names
    }
    words = {
        "classes": list(classes),
        "columns": columns,
        **({"settings": dict(settings)} if settings else {}),
    }
    return schema.with_metadata({name: json.dumps(each) for name, each in words.items()})
