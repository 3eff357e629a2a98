"""Predictions of a model on a split of the features Parquet, keyed by event identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from features.schema import IDENTITY_COLUMNS
from models.classifier import Classifier
from models.errors import InputError
from models.inputs import input_tensors


def predict(model: Classifier, files: Sequence[Path], *, batch_size: int = 256) -> pa.Table:
    """Class probabilities of all rows of some features files.

    Args:
        model: A network; it is put into evaluation mode.
        files: Features Parquet files.
        batch_size: Rows that are read and go through the network at once; 256 with particle lists take half a GB.

    Returns:
        Columns `file_uuid`, `entry`, `label`, `weight` and `probability` (a list with one number per class).

    Raises:
        InputError: The files hold no events, or not the features that the network takes.
    """
    model.eval()
    kept = [*IDENTITY_COLUMNS, "label", "weight"]
    parts = []
    for file in files:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size, columns=[*kept, *model.inputs]):
                scores = probabilities(model, {name: _rows(batch, name) for name in model.inputs})
                parts.append(
                    pa.Table.from_batches([batch.select(kept)]).append_column("probability", pa.array(list(scores)))
                )
    if not parts:
        raise InputError("there are no events to predict. Add files, or enlarge the split in features.split.")
    return pa.concat_tables(parts)


def probabilities(model: Classifier, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Softmax of the logits, (num_events, num_classes), of columns as `models.inputs.input_tensors` takes them."""
    weights = next(model.parameters())
    inputs = [tensor.to(weights.device) for tensor in input_tensors(columns, model.inputs, dtype=weights.dtype)]
    with torch.inference_mode():
        return np.asarray(torch.softmax(model(*inputs), dim=1).cpu().numpy(), dtype=np.float32)


def _rows(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """A column with the numbers of each event in one row, or (num_rows,) if they are single."""
    column = batch.column(name)
    if not pa.types.is_list(column.type):
        return np.asarray(column.to_numpy())
    lengths = column.value_lengths().unique()
    if len(lengths) > 1:
        raise InputError(f"column {name} has lists of different lengths. Make the features again.")
    return np.asarray(column.flatten().to_numpy()).reshape(batch.num_rows, -1)
