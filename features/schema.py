"""The file format of the features Parquet: its splits, the identity of its rows, its Arrow types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from features.columns import COLUMNS
from ingestion.schema import WEIGHT_PREFIX

SPLITS: Final = ("train", "val", "test")
#: Begin of the names of the columns with other weights of the generator.
OTHER_WEIGHTS: Final = WEIGHT_PREFIX
#: Number of the training split.
TRAIN: Final = 0

#: Columns that identify the event of a row; models never use them.
IDENTITY_COLUMNS: Final = ("file_uuid", "entry")


def features_schema(carried: Sequence[pa.Field] = ()) -> pa.Schema:
    """Arrow schema of the features Parquet; values are unscaled, nothing is nullable.

    Columns that the user carries along come last.

    Examples:
        >>> features_schema().field("particle_pt").type
        ListType(list<element: float not null>)
    """
    fields = []
    for column in COLUMNS.values():
        kind = pa.type_for_alias(column.dtype)
        if column.is_list:
            kind = pa.list_(pa.field("element", kind, nullable=False))
        fields.append(pa.field(column.name, kind, nullable=False))
    return pa.schema([*fields, *carried])
