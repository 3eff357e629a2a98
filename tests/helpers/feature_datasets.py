"""Small features datasets for tests of training and evaluation: separable classes, any layout of row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from features.dataset import FeatureDataset, RowGroup
from features.scaling import ColumnStatistics
from features.schema import MAX_PARTICLES, NUM_HLF, NUM_PARTICLE_FEATURES, SPLITS, features_schema

CLASSES = ["QCD", "ttbar", "W+jets"]


def write_dataset(
    folder: Path,
    *,
    rows: Mapping[str, Sequence[int]],
    seed: int = 1,
    class_weights: Sequence[float] = (1.0, 1.0, 1.0),
    separation: float = 3.0,
) -> FeatureDataset:
    """Write a dataset with the given rows of each row group of each split; `entry` counts through all rows."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(0, separation, (len(CLASSES), NUM_HLF))
    splits: dict[str, list[RowGroup]] = {}
    counts: dict[str, list[int]] = {}
    entry = 0
    train_rows = []
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
        splits[split] = []
        labels_seen = []
        for group, num_rows in enumerate(rows[split]):
            labels = rng.integers(0, len(CLASSES), num_rows)
            labels[: len(CLASSES)] = np.arange(min(num_rows, len(CLASSES)))
            hlf = (100 + 10 * (centres[labels] + rng.normal(0, 1, (num_rows, NUM_HLF)))).astype(np.float32)
            name = f"{split}/part-{group:05d}.parquet"
            _write_group(
                folder / name, hlf, labels, rng.uniform(0.5, 1.5, num_rows), np.arange(entry, entry + num_rows)
            )
            entry += num_rows
            splits[split].append(RowGroup(name, num_rows))
            labels_seen.append(labels)
            if split == "train":
                train_rows.append(hlf)
        counts[split] = np.bincount(np.concatenate(labels_seen), minlength=len(CLASSES)).tolist()
    dataset = FeatureDataset(folder, CLASSES, list(class_weights), splits, counts)
    dataset.save(columns={"hlf": ColumnStatistics.of(np.concatenate(train_rows)).to_json()})
    return dataset


def _write_group(path: Path, hlf: np.ndarray, labels: np.ndarray, weights: np.ndarray, entries: np.ndarray) -> None:
    num_rows = len(labels)
    zeros = np.zeros((num_rows, MAX_PARTICLES * NUM_PARTICLE_FEATURES), dtype=np.float32)
    columns = {
        "hlf": list(hlf),
        "particles": list(zeros),
        "num_particles": np.ones(num_rows, dtype=np.int32),
        "label": labels.astype(np.int64),
        "weight": weights.astype(np.float32),
        "file_uuid": ["00000000-0000-0000-0000-000000000000"] * num_rows,
        "entry": entries,
    }
    table = pa.table({name: pa.array(values) for name, values in columns.items()}).cast(features_schema())
    pq.write_table(table, path, row_group_size=max(1, num_rows))
