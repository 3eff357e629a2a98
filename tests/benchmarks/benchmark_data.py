"""Separable events for benchmarks, and the network for them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from feature_datasets import CLASSES
from torch import nn

from features.columns import INPUT_COLUMNS, hlf_names
from features.dataset import FeatureDataset, RowGroup
from features.scaling import ColumnStatistics, scaler_json
from models.networks.hlf_settings import HlfSettings
from models.saved_model import build, model_spec
from training.readers.memory import MemoryRows
from training.readers.sharding import even_parts

GROUPS = 16


def hlf_dataset(folder: Path, num_rows: int) -> FeatureDataset:
    """Separable events with the columns that the HLF network reads, and no others."""
    rng = np.random.default_rng(1)
    servers = np.random.default_rng(99).normal(0, 1, (len(CLASSES), len(hlf_names())))
    splits: dict[str, list[RowGroup]] = {}
    for split, rows in {"train": num_rows, "val": num_rows // 100, "test": num_rows // 100}.items():
        (folder / split).mkdir(parents=True)
        splits[split] = []
        for group in range(GROUPS):
            count = max(1, rows // GROUPS)
            labels = rng.integers(0, len(CLASSES), count)
            hlf = (
                100 + 10 * (servers[labels] + rng.normal(0, 1, (count, len(hlf_names()))))
            ).astype(np.float32)
            columns = {
                **dict(zip(hlf_names(), hlf.T.copy(), strict=True)),
                "label": pa.array(labels),
                "weight": pa.array(np.ones(count)),
            }
            name = f"{split}/part-{group:05d}.parquet"
            pq.write_table(pa.table(columns), folder / name, row_group_size=count)
            splits[split].append(RowGroup(name, count))
    dataset = FeatureDataset(
        folder, CLASSES, [1.0, 1.0, 1.0], splits, {split: [1, 1, 1] for split in splits}
    )
    dataset.save(
        columns={"hlf": scaler_json(ColumnStatistics.from_rows(hlf), INPUT_COLUMNS["hlf"])}
    )
    return dataset


def in_memory(num_rows: int, *, workers: int) -> tuple[MemoryRows, MemoryRows, nn.Module]:
    """Separable events in memory, and the HLF network for them."""
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = hlf_dataset(Path(folder) / "hlf", num_rows)
        network = build(model_spec(HlfSettings(), dataset))
        train, val = (
            MemoryRows.load(dataset, split, network.inputs, seed=1) for split in ("train", "val")
        )
    return replace(train, group_rows=even_parts(len(train), max(workers, GROUPS))), val, network
