"""The interface of all readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from training.readers.batch import Batch
from training.readers.sharding import Assignment


class Reader(Protocol):
    """Delivers the training and validation events of a rank in batches.

    All readers deliver the same batches, bit by bit: the order of events depends on seed, epoch and row group only.
    """

    def train_batches(self, assignment: Assignment) -> Iterator[Batch]:
        """The steps of an assignment, some of which may be empty.

        Args:
            assignment: The rows, from `training.readers.sharding.assignment_of` or `training.readers.units`.

        Raises:
            DamagedDatasetError: A file cannot be read.
        """
        ...

    def prefetch(self, assignment: Assignment) -> None:  # noqa: ARG002 - most need none
        """Begin to read what the next call of `train_batches` asks for; nothing, if most is in memory."""
        return

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """This rank's part of the validation split; ranks may get different numbers of batches.

        A batch is one row group, or an even part of a very large one.

        Args:
            rank: Rank of the worker.
            world_size: Number of ranks.

        Raises:
            DamagedDatasetError: A file cannot be read.
        """
        ...
