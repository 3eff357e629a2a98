"""Small features datasets whose events have particles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from feature_datasets import offsets_of, write_dataset

from features.columns import MAX_PARTICLES, NUM_CORE, PARTICLE_KINDS
from features.dataset import FeatureDataset
from features.matrices import list_columns, of_columns
from features.schema import features_schema


def write_particle_dataset(
    folder: Path, *, rows: Mapping[str, Sequence[int]], class_weights: Sequence[float] = (2.0, 1.0, 0.5)
) -> FeatureDataset:
    """A dataset of `write_dataset` with random particles; most events have few, so that batches differ in length."""
    dataset = write_dataset(folder, rows=rows, class_weights=class_weights)
    rng = np.random.default_rng(7)
    for split in rows:
        for path in dataset.files(split):
            num_rows = pq.read_metadata(path).num_rows
            lengths = np.minimum(rng.geometric(0.02, num_rows), MAX_PARTICLES).astype(np.int32)
            core = rng.normal(size=(lengths.sum(), NUM_CORE)).astype(np.float32)
            core[:, 0] = rng.integers(0, len(PARTICLE_KINDS), len(core))
            replace_columns(
                path, num_particles=pa.array(lengths), **list_columns(offsets_of(lengths), of_columns(core.T))
            )
    return dataset


def replace_columns(path: Path, **columns: pa.Array) -> None:
    """Rewrite a features file with other values in some columns."""
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    pq.write_table(table.cast(features_schema()), path)
