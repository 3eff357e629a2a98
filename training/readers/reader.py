"""The interface of all readers, and their opening by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from features.dataset import FeatureDataset
from training.readers.batch import Batch, BatchLayout, require_no_pickled_schema
from training.readers.memory import MemoryReader, MemoryRows
from training.readers.sharding import Assignment, OwnedRows
from training.settings import ReaderKind


class Reader(Protocol):
    """Delivers the training and validation events of a rank in batches.

    All readers deliver the same batches, bit by bit: the order of events depends on seed, epoch and
    row group only.
    """

    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        """Yield the batches of an assignment, one for each step; some may be empty."""
        ...

    def prefetch(self, assignment: Assignment) -> None:
        """Begin to read the rows of the next call of `train_batches`, if they are not in memory."""
        ...

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """Yield this rank's part of the validation split; ranks may get unequal numbers of batches.

        A batch is one row group, or an even part of a very large one.
        """
        ...


def open_reader(
    dataset: FeatureDataset,
    inputs: Sequence[str],
    *,
    kind: ReaderKind = "petastorm",
    dtype: torch.dtype = torch.float32,
    seed: int,
    device: torch.device | str = "cpu",
    owned_rows: OwnedRows | None = None,
    spectators: Sequence[str] = (),
) -> Reader:
    """Open a reader of the training and validation split of a dataset.

    `inputs`: columns that the model takes, from `hlf`, `particles` and `num_particles`. `kind`:
    `petastorm` reads the files in every epoch; `arrow` reads each row group once and holds it in
    memory, on `device`. `owned_rows`: rows of each row group to train on; None: all.
    `spectators`: further columns of numbers, which the loss needs beside the inputs.

    Raises:
        DamagedDatasetError: A file is missing or no Parquet file, or the dataset has petastorm's
            pickled schema.
        TrainingError: The dataset does not fit into memory.
    """
    require_no_pickled_schema(dataset)
    layout = BatchLayout.for_inputs(
        dataset, inputs, dtype=dtype, device=device, spectators=spectators
    )
    if kind == "arrow":
        train = MemoryRows.lazy(dataset, "train", layout, seed=seed)
        val = MemoryRows.lazy(dataset, "val", layout, seed=seed)
        return MemoryReader(train, val, owned_rows=owned_rows)
    # Petastorm and pandas take half a second to load.
    from training.readers.streamed import StreamedReader  # noqa: PLC0415

    return StreamedReader(dataset, layout, seed=seed, owned_rows=owned_rows)
