"""The interface of workloads: rows, network and augmentation of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hep_core.atomic_files import new_file
from models.errors import SavedModelError
from training.errors import ColumnError
from training.readers.memory import MemoryReader, MemoryRows
from training.readers.reader import Reader
from training.readers.sharding import OwnedRows
from training.readers.skew import DirichletPartition
from training.settings import TrainSettings
from training.workloads.decorrelation import Decorrelation
from training.workloads.draws import Augmentation

Split = Literal["train", "val", "test"]
_WEIGHTS: Final = "weights.pt"


class Workload(Protocol):
    """Rows, network and augmentation of a run.

    The loss is the weighted cross-entropy for all, with the term of `decorrelation` if there is
    one.
    """

    augmentation: Augmentation | None = None
    """Changes the images of each training batch; None for no change."""

    def group_rows(self, split: Split) -> list[int]:
        """Return the number of rows of each row group of a split."""

    def network(self) -> nn.Module:
        """Make the network with its initial weights.

        They come from torch's random state and have torch's default type.
        """

    def rows(self, split: Split, settings: TrainSettings) -> MemoryRows:
        """Read all rows of a split into host memory."""

    def labels(self, settings: TrainSettings) -> NDArray[np.int64]:
        """Return the class of each row of the training split, (num_rows,)."""
        labels: NDArray[np.int64] = self.rows("train", settings).rows.labels.numpy()
        return labels

    def partition(self, settings: TrainSettings, *, world_size: int) -> DirichletPartition | None:
        """Draw the training rows that each worker owns; None if all workers divide all rows.

        Raises:
            ShardError: The rows cannot be divided in this way.
        """
        if settings.skew is None:
            return None
        return DirichletPartition(
            self.labels(settings),
            self.group_rows("train"),
            world_size=world_size,
            alpha=settings.skew.dirichlet,
            seed=settings.seed,
        )

    def decorrelation(self, settings: TrainSettings) -> Decorrelation | None:
        """Return the further term of the loss by `train.decorrelate`; None without.

        Raises:
            ColumnError: The rows have no such columns or classes.
        """
        if settings.decorrelate is None:
            return None
        raise ColumnError(
            "train.decorrelate needs rows with named columns, which only collision events have. "
            "Leave it out."
        )

    def reader(
        self,
        settings: TrainSettings,
        device: torch.device,  # noqa: ARG002
        *,
        owned_rows: OwnedRows | None = None,
    ) -> Reader:
        """Open a reader of the training and validation rows.

        `owned_rows`: numbers of the rows of each row group to train on; None: all.
        """
        train, val = self.rows("train", settings), self.rows("val", settings)
        return MemoryReader(train, val, owned_rows=owned_rows)

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write a trained network into a folder."""
        folder.mkdir(exist_ok=True)
        with new_file(folder / _WEIGHTS) as unfinished:
            torch.save(module.state_dict(), unfinished)

    def load(self, folder: Path) -> nn.Module:
        """Read a network that `save` wrote, to the CPU.

        Raises:
            SavedModelError: The file is missing or damaged, or of another network.
        """
        module = self.network()
        try:
            module.load_state_dict(
                torch.load(folder / _WEIGHTS, weights_only=True, map_location="cpu")
            )
        except Exception as cause:  # Unpickling damaged bytes raises almost any error.
            raise SavedModelError(
                f"{folder} holds no readable model ({cause}). Train again."
            ) from cause
        return module


def network_dtype(settings: TrainSettings) -> torch.dtype:
    """Return the floating point type of the network, by `train.precision`."""
    return {"float32": torch.float32, "float64": torch.float64}[settings.precision]
