"""Converts events of notebooks, in any of the usual forms, into Arrow tables."""

from __future__ import annotations

import sys
from typing import Any

import awkward as ak
import pyarrow as pa

from features.errors import DatasetError
from ingestion.schema import COLLECTIONS, events_schema


def as_table(events: Any) -> pa.Table:
    """Convert events, a row for each, into an Arrow table; keep an Arrow table.

    Collections without a candidate in any event get the type that they have in the events Parquet.

    Raises:
        DatasetError: The events are no table.
    """
    if isinstance(events, pa.Table):
        table = events
    elif isinstance(events, pa.RecordBatch):
        table = pa.Table.from_batches([events])
    elif isinstance(events, ak.Array) and events.ndim == 1 and events.fields:
        table = ak.to_arrow_table(events, extensionarray=False)
    elif _is_data_frame(events):
        table = pa.Table.from_pandas(events, preserve_index=False)
    else:
        raise DatasetError(
            f"events are an awkward array of records, a pandas DataFrame, or an Arrow table or "
            f"record batch, not a {type(events).__name__}. `ak.Array` makes an array of a list of "
            f"records; of one event, pass a slice of length 1."
        )
    for index, column in enumerate(table.schema):
        if column.name in COLLECTIONS and _has_no_type(column.type):
            known_field = events_schema().field(column.name)
            typed = table[column.name].cast(known_field.type)
            table = table.set_column(index, column.name, typed)
    return table


def _is_data_frame(events: Any) -> bool:
    """Return whether events are a pandas DataFrame; pandas need not be installed."""
    # A program that has a DataFrame has imported pandas.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(events, pandas.DataFrame)


def _has_no_type(column: pa.DataType) -> bool:
    """Return whether a column is of lists of nothing: Arrow finds the type in the candidates."""
    is_list: bool = pa.types.is_list(column)
    item_type = column.value_type if is_list else column
    has_no_type: bool = pa.types.is_null(item_type)
    return has_no_type
