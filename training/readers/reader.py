"""The interface of all readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from training.readers.batch import Batch
from training.readers.sharding import EpochPlan


class Reader(Protocol):
    """Delivers the training and validation events of a rank in batches.

    All readers deliver the same batches, bit by bit: the order of events depends on seed, epoch and row group only.
    """

    @property
    def cached_bytes(self) -> int:
        """Size of the row groups that the reader keeps in memory."""
        ...

    def train_batches(self, plan: EpochPlan, *, rank: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The steps of one rank in one epoch, some of which may be empty: `plan.num_steps - first_step` batches.

        Args:
            plan: The epoch's plan, from `training.readers.sharding.plan_epoch`.
            rank: Rank of the worker.
            epoch: Number of the epoch, from 0.
            first_step: Number of steps to skip; row groups for these steps only are not read.

        Raises:
            DamagedDatasetError: A file cannot be read.
        """
        ...

    def val_batches(self, *, rank: int, world_size: int) -> Iterator[Batch]:
        """This rank's share of the validation split; ranks may get different numbers of batches.

        A batch is one row group, or an even part of a very large one.

        Args:
            rank: Rank of the worker.
            world_size: Number of ranks.

        Raises:
            DamagedDatasetError: A file cannot be read.
        """
        ...
