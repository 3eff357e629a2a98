"""Small features datasets whose events have particles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from feature_datasets import write_dataset

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from features.dataset import FeatureDataset
from features.schema import features_schema


def write_particle_dataset(
    folder: Path, *, rows: Mapping[str, Sequence[int]], class_weights: Sequence[float] = (2.0, 1.0, 0.5)
) -> FeatureDataset:
    """A dataset of `write_dataset` with random particles; most events have few, so that batches differ in length."""
    dataset = write_dataset(folder, rows=rows, class_weights=class_weights)
    rng = np.random.default_rng(7)
    for split in rows:
        for path in dataset.files(split):
            table = pq.read_table(path)
            lengths = np.minimum(rng.geometric(0.02, table.num_rows), MAX_PARTICLES).astype(np.int32)
            particles = rng.normal(size=(table.num_rows, MAX_PARTICLES, NUM_PARTICLE_FEATURES)).astype(np.float32)
            particles[np.arange(MAX_PARTICLES) >= lengths[:, None]] = 0
            replace_columns(path, num_particles=lengths, particles=list(particles.reshape(table.num_rows, -1)))
    return dataset


def replace_columns(path: Path, **columns: object) -> None:
    """Rewrite a features file with other values in some columns."""
    table = pq.read_table(path)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(values, type=table.schema.field(name).type))
    pq.write_table(table.cast(features_schema()), path)
