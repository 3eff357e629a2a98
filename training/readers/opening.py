"""What every reader does, and which there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import torch

from features.dataset import FeatureDataset
from training.readers.batch import Batch, BatchLayout
from training.readers.cached import CachedReader
from training.readers.hostile import refuse_pickled_schema
from training.readers.sharding import EpochPlan
from training.readers.sources import ArrowSource, PetastormSource
from training.readers.streamed import StreamedReader

ReaderKind = Literal["petastorm", "arrow"]
CacheKind = Literal["none", "memory"]


class Reader(Protocol):
    """Delivers the training and validation events of a rank, in batches.

    All readers deliver the same batches, bit by bit: the order of events hangs on seed, epoch and row group only.
    """

    @property
    def cached_bytes(self) -> int:
        """Size of the row groups that the reader keeps in memory."""
        ...

    def train_batches(self, plan: EpochPlan, *, rank: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The steps of one rank in one epoch, some of which may be empty: `plan.num_steps - first_step` batches.

        Args:
            plan: The epoch's plan, from `training.readers.sharding.plan_epoch`.
            rank: Which rank.
            epoch: Number of the epoch, from 0.
            first_step: Steps that were done before; row groups that only they needed are not read.

        Raises:
            DamagedDatasetError: A file cannot be read.
        """
        ...

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """This rank's share of the validation split; ranks may get different numbers of batches.

        A batch is one row group, or an even part of it where that would be very large.

        Args:
            rank: Which rank.
            world_size: Number of ranks.

        Raises:
            DamagedDatasetError: A file cannot be read.
        """
        ...


def open_reader(
    dataset: FeatureDataset,
    inputs: Sequence[str],
    *,
    kind: ReaderKind = "petastorm",
    cache: CacheKind = "none",
    dtype: torch.dtype = torch.float32,
    seed: int,
    device: torch.device | str = "cpu",
) -> Reader:
    """A reader of a dataset.

    Args:
        dataset: The features dataset.
        inputs: Columns that the model takes: of `hlf`, `particles` and `num_particles`.
        kind: What reads the files.
        cache: `memory` keeps every row group that was read, as tensors on `device`.
        dtype: Floating point type of the tensors.
        seed: Seed of the run.
        device: Where the batches are.

    Raises:
        HostileDatasetError: The dataset carries petastorm's pickled schema.
        DamagedDatasetError: A file is missing or is no Parquet file.
    """
    refuse_pickled_schema(dataset)
    layout = BatchLayout.of(dataset, inputs, dtype=dtype, device=device)
    source = (PetastormSource if kind == "petastorm" else ArrowSource)(dataset, layout.fields)
    return (CachedReader if cache == "memory" else StreamedReader)(dataset, source, layout, seed=seed)
