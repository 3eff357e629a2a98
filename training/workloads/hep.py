"""The workload `hep`: collision events, from a features dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from typing_extensions import override

from features.dataset import FeatureDataset
from models.networks.network_settings import NetworkSettings
from models.saved_model import build, load_model, model_spec, save_model
from training.errors import ShardError
from training.readers.memory import MemoryRows
from training.readers.reader import Reader, open_reader
from training.readers.sharding import OwnedRows
from training.readers.skew import read_labels
from training.settings import TrainSettings
from training.workloads.decorrelation import Decorrelation
from training.workloads.workload import Split, Workload, network_dtype


class HepEvents(Workload):
    """Events of a features dataset, and one of the networks of `models.networks.registry`.

    `folder`: folder of the dataset. `network`: settings of the network. `network_code`: digest of
    its plugin, for the saved model.

    Raises:
        ShardError: The training or validation split has no events.
    """

    def __init__(
        self, folder: Path, network: NetworkSettings, network_code: Mapping[str, str]
    ) -> None:
        self.dataset = FeatureDataset.load(folder)
        for split in ("train", "val"):
            if not self.dataset.num_rows(split):
                raise ShardError(
                    f"the {split} split of {folder} has no events. Make the features again, from "
                    f"more."
                )
        self._spec = model_spec(network, self.dataset, network_code)

    @override
    def group_rows(self, split: Split) -> list[int]:
        return [group.rows for group in self.dataset.splits[split]]

    @override
    def network(self) -> nn.Module:
        return build(self._spec)

    @override
    def reader(
        self, settings: TrainSettings, device: torch.device, *, owned_rows: OwnedRows | None = None
    ) -> Reader:
        return open_reader(
            self.dataset,
            self._spec.settings.inputs,
            kind=settings.reader,
            dtype=network_dtype(settings),
            seed=settings.seed,
            device=device,
            owned_rows=owned_rows,
            spectators=_spectators(settings),
        )

    @override
    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        inputs = self._spec.settings.inputs
        return MemoryRows.load(
            self.dataset,
            split,
            inputs,
            dtype=network_dtype(settings),
            seed=settings.seed,
            spectators=_spectators(settings),
        )

    @override
    def decorrelation(self, settings: TrainSettings) -> Decorrelation | None:
        if settings.decorrelate is None:
            return None
        return Decorrelation.from_settings(settings.decorrelate, self.dataset.classes)

    @override
    def labels(self, settings: TrainSettings) -> NDArray[np.int64]:
        return read_labels(self.dataset)

    @override
    def save(self, module: nn.Module, folder: Path) -> None:
        save_model(module, self._spec, folder)

    @override
    def load(self, folder: Path) -> nn.Module:
        return load_model(folder)[0]


def _spectators(settings: TrainSettings) -> list[str]:
    """Return the columns that the loss needs beside the inputs of the network."""
    return [] if settings.decorrelate is None else settings.decorrelate.columns
