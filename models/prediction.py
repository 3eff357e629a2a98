"""Predictions of a model on features Parquet, keyed by event identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.schema import IDENTITY_COLUMNS
from models.errors import InputError


class Predictor(Protocol):
    """What gives each event a probability of each class: a network of ours, an exported one, boosted trees."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the features Parquet that it takes."""

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """(num_events, num_classes), of columns as they lie in the features Parquet, one row an event."""


def predict(
    model: Predictor,
    files: Sequence[Path],
    *,
    batch_size: int = 256,
    also: Sequence[str] = (),
    at_most: int | None = None,
    on_events: Callable[[int], None] | None = None,
) -> pa.Table:
    """Class probabilities of all rows of some features files.

    Args:
        model: What predicts.
        files: Features Parquet files.
        batch_size: Rows that are read and predicted at once; 256 with particle lists take half a GB.
        also: Further columns of the files to keep.
        at_most: Stop after so many events; rows are mixed, so the first are a random sample.
        on_events: Called with the number of each batch.

    Returns:
        Columns `file_uuid`, `entry`, `label`, `weight`, those of `also`, and `probability` (a list with one number per
        class).

    Raises:
        InputError: The files hold no events, or not the features that the model takes.
    """
    kept = [*IDENTITY_COLUMNS, "label", "weight", *also]
    parts: list[pa.Table] = []
    left = at_most
    for file in files:
        if left == 0:
            break
        with pq.ParquetFile(file) as parquet:
            missing = {*kept, *model.inputs} - set(parquet.schema_arrow.names)
            if missing:
                raise InputError(f"{file} has no column {sorted(missing)}. Make the features again.")
            for batch in parquet.iter_batches(batch_size, columns=sorted({*kept, *model.inputs})):
                chosen = batch if left is None else batch.slice(0, left)
                if chosen.num_rows == 0:
                    break
                scores = model.probabilities({name: rows_of(chosen, name) for name in model.inputs})
                parts.append(
                    pa.Table.from_batches([chosen.select(kept)]).append_column("probability", pa.array(list(scores)))
                )
                left = None if left is None else left - chosen.num_rows
                if on_events:
                    on_events(chosen.num_rows)
    if not parts:
        raise InputError("there are no events to predict. Add files, or enlarge the split in features.split.")
    return pa.concat_tables(parts)


def rows_of(batch: pa.RecordBatch | pa.Table, name: str) -> NDArray[Any]:
    """A column with the numbers of each event in one row, or (num_rows,) if they are single.

    Raises:
        InputError: Events have lists of different lengths.
    """
    column = batch.column(name)
    if isinstance(column, pa.ChunkedArray):
        combined = column.combine_chunks()
        column = combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
    if not pa.types.is_list(column.type):
        return np.asarray(column.to_numpy())
    lengths = column.value_lengths().unique()
    if len(lengths) > 1:
        raise InputError(f"column {name} has lists of different lengths. Make the features again.")
    return np.asarray(column.flatten().to_numpy()).reshape(batch.num_rows, -1)
