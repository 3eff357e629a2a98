"""What a run trains, opened: rows, network and augmentation, the same for MPI and the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import nn

from training.readers.memory import MemoryRows
from training.readers.reader import Reader
from training.readers.sharding import OwnRows
from training.readers.skew import Owners
from training.settings import TrainSettings
from training.workloads.draws import Augmentation

Split = Literal["train", "val", "test"]


class Workload(Protocol):
    """Rows, network and augmentation of a run. The loss is the weighted cross-entropy for all."""

    augmentation: Augmentation | None = None
    """Changes the images of each training batch; None for no change."""

    def group_rows(self, split: Split) -> list[int]:
        """Number of rows of each row group of a split."""

    def network(self) -> nn.Module:
        """The network with its initial weights, from torch's random state, in torch's default type."""

    def owners(self, settings: TrainSettings, *, world_size: int) -> Owners | None:
        """Who owns which training rows; None if all read all.

        Raises:
            ShardError: The rows cannot be divided in this way.
        """

    def reader(self, settings: TrainSettings, device: torch.device, *, own: OwnRows | None = None) -> Reader:
        """A reader of the training and validation rows; `own`: rows of each row group to train on, None for all."""

    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        """All rows of a split in host memory."""

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write a trained network into a folder."""

    def load(self, folder: Path) -> nn.Module:
        """Read a network that `save` wrote, to the CPU."""


def dtype_of(settings: TrainSettings) -> torch.dtype:
    """The floating point type of the network."""
    return {"float32": torch.float32, "float64": torch.float64}[settings.precision]
