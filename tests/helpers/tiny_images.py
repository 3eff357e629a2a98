"""A small workload with all that features lack: batch norm, dropout and augmentation; for ranks and
simulator alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hep_studies.networks.pixels import Pixels
from models.networks.scaling_layer import Scaler
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.settings import TrainSettings
from training.workloads.draws import Augmentation
from training.workloads.workload import Split, Workload, network_dtype

SIDE = 5
ROWS = {"train": [10] * 12, "val": [30], "test": [30]}


def network(dropout: float = 0.2) -> nn.Module:
    """Batch norm before the hidden layer's ReLU, dropout behind it."""
    return nn.Sequential(
        Pixels(Scaler([100.0], [50.0]), SIDE),
        nn.Flatten(),
        nn.Linear(SIDE * SIDE, 12),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(12, 3),
    )


class TinyImages(Workload):
    """Noisy bars at three heights; also the settings of itself, as `RunSpec` has them."""

    network_name = "tiny"
    meaning: dict[str, Any] = {}  # noqa: RUF012
    augmentation = Augmentation(padding=1, side=SIDE)

    def open(self) -> Workload:
        return self

    def group_rows(self, split: Split) -> list[int]:
        return ROWS[split]

    def network(self) -> nn.Module:
        return network()

    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        count = sum(ROWS[split])
        rng = np.random.default_rng(count)
        labels = np.arange(count) % 3
        pixels = rng.integers(120, size=(count, SIDE, SIDE, 1), dtype=np.uint8)
        pixels[np.arange(count), 2 * labels] += 130
        weights = torch.ones(count, dtype=network_dtype(settings))
        rows = Rows((torch.from_numpy(pixels),), torch.from_numpy(labels), weights)
        return MemoryRows(rows, settings.seed, self.group_rows(split), mixes_groups=True)
