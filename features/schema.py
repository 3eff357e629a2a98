"""The file format of the features Parquet: splits, identity of the rows, Arrow types."""

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
#: Prefix of the names of columns with other weights of the generator.
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
        arrow_type = pa.type_for_alias(column.dtype)
        if column.is_list:
            arrow_type = pa.list_(pa.field("element", arrow_type, nullable=False))
        fields.append(pa.field(column.name, arrow_type, nullable=False))
    return pa.schema([*fields, *pass_through])


def identities(files: Iterable[Path]) -> pa.Array:
    """The text `uuid:entry` of each row of some features files, which identifies its event."""
    by_file = [row_identities(read_parquet(file, IDENTITY_COLUMNS)) for file in files]
    return pa.chunked_array(by_file, pa.string()).combine_chunks()


def row_identities(rows: pa.Table) -> pa.Array:
    """`uuid:entry` of each row of events or features."""
    entries = rows["entry"].cast(pa.string())
    return pc.binary_join_element_wise(rows["file_uuid"], entries, ":").combine_chunks()


def described_schema(
    schema: pa.Schema, classes: Sequence[str], settings: Mapping[str, Any] | None = None
) -> pa.Schema:
    """A copy of a schema with metadata, which every reader of Parquet shows.

    The metadata are JSON: `classes`, the names of the classes in the order of the labels;
    `columns`, unit and definition of each column, from the column table; and `settings`, if given,
    which `stated_settings` reads.
    """
    columns = {}
    for name, column in COLUMNS.items():
        if name in schema.names:
            columns[name] = {"unit": column.unit, "definition": column.meaning}
    metadata = {"classes": json.dumps(list(classes)), "columns": json.dumps(columns)}
    if settings:
        metadata["settings"] = json.dumps(dict(settings))
    return schema.with_metadata(metadata)


def stated_settings(schema: pa.Schema) -> dict[str, Any]:
    """The settings by key of the config that made the features; empty for tables without them."""
    metadata = schema.metadata or {}
    settings_text = metadata.get(b"settings", b"{}")
    settings: dict[str, Any] = json.loads(settings_text)
    return settings
