"""The workload `hep`: collision events, from a features dataset."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import override

from features.dataset import FeatureDataset
from models.networks.network_settings import NetworkSettings
from models.saved_model import ModelSpec, build, load_model, model_spec, save_model
from training.errors import NoEventsError, WarmStartError
from training.readers.memory import MemoryRows
from training.readers.reader import Reader, open_reader
from training.readers.sharding import OwnRows
from training.readers.skew import Owners, labels_of
from training.settings import TrainSettings
from training.workloads.workload import Split, Workload, dtype_of


class HepEvents(Workload):
    """Events of a features dataset, and one of the networks of `models.networks.registry`.

    `start_from`: folder of the model that gives the initial weights and scaling; None for fresh weights.

    Raises:
        NoEventsError: The training or validation split has no events.
        WarmStartError: The training cannot start from that model.
    """

    def __init__(self, folder: Path, network: NetworkSettings, start_from: Path | None) -> None:
        self.dataset = FeatureDataset.load(folder)
        for split in ("train", "val"):
            if not self.dataset.num_rows(split):
                raise NoEventsError(f"the {split} split of {folder} has no events. Make the features again, from more.")
        self._spec = model_spec(network, self.dataset)
        self._start: dict[str, Tensor] | None = None
        if start_from is not None:
            model, spec = load_start(start_from, self._spec)
            # Weights are meaningful only with the scaling of their training.
            self._start, self._spec = model.state_dict(), self._spec._replace(scalers=spec.scalers)

    @override
    def group_rows(self, split: Split) -> list[int]:
        return [group.rows for group in self.dataset.splits[split]]

    @override
    def network(self) -> nn.Module:
        network = build(self._spec)
        if self._start is not None:
            network.load_state_dict(self._start)
        return network

    @override
    def owners(self, settings: TrainSettings, *, world_size: int) -> Owners | None:
        if settings.skew is None:
            return None
        alpha, seed = settings.skew.dirichlet, settings.seed
        return Owners(labels_of(self.dataset), self.group_rows("train"), world_size=world_size, alpha=alpha, seed=seed)

    @override
    def reader(self, settings: TrainSettings, device: torch.device, *, own: OwnRows | None = None) -> Reader:
        return open_reader(
            self.dataset,
            self._spec.settings.inputs,
            kind=settings.reader,
            dtype=dtype_of(settings),
            seed=settings.seed,
            device=device,
            own=own,
        )

    @override
    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        inputs = self._spec.settings.inputs
        return MemoryRows.load(self.dataset, split, inputs, dtype=dtype_of(settings), seed=settings.seed)

    @override
    def save(self, module: nn.Module, folder: Path) -> None:
        save_model(module, self._spec, folder)

    @override
    def load(self, folder: Path) -> nn.Module:
        return load_model(folder)[0]


def load_start(folder: Path, wanted: ModelSpec) -> tuple[nn.Module, ModelSpec]:
    """Read a model to start from, and what it is.

    Raises:
        WarmStartError: It is another network, or a network for other classes or features.
    """
    model, spec = load_model(folder)
    for what in ("settings", "classes", "definitions"):
        found, expected = getattr(spec, what), getattr(wanted, what)
        if found != expected:
            raise WarmStartError(
                f"training cannot start from {folder}: its {what} are {found}, not {expected}. "
                f"Set train.warm_start: false."
            )
    return model, spec
