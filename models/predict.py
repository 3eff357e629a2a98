"""Predictions of a model on a split of the features Parquet, keyed by event identity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from features.schema import IDENTITY_COLUMNS
from models.hlf import HlfClassifier


def predict(model: HlfClassifier, files: Sequence[Path], *, batch_size: int = 4096) -> pa.Table:
    """Class probabilities of all rows of some features files.

    Args:
        model: A network; it is put into evaluation mode.
        files: Features Parquet files.
        batch_size: Rows that go through the network at once.

    Returns:
        Columns `file_uuid`, `entry`, `label`, `weight` and `probability` (a list with one number per class).
    """
    model.eval()
    columns = [*IDENTITY_COLUMNS, "label", "weight"]
    tables = []
    for file in files:
        rows = pq.read_table(file, columns=[*columns, *model.inputs])
        parts = [
            probabilities(model, _inputs(batch, model.inputs)) for batch in rows.to_batches(max_chunksize=batch_size)
        ]
        tables.append(rows.select(columns).append_column("probability", pa.array(list(np.concatenate(parts)))))
    return pa.concat_tables(tables)


def probabilities(model: HlfClassifier, inputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Softmax of the logits; (num_events, num_classes)."""
    with torch.inference_mode():
        logits = model(*(torch.from_numpy(column) for column in inputs))
        return np.asarray(torch.softmax(logits, dim=1).numpy(), dtype=np.float32)


def _inputs(batch: pa.RecordBatch, names: Sequence[str]) -> list[NDArray[np.float32]]:
    return [batch.column(name).flatten().to_numpy().reshape(batch.num_rows, -1).copy() for name in names]
