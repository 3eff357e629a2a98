"""The rows that a worker trains on: its part of each epoch, or work units."""

from __future__ import annotations

from collections.abc import Sequence

from training.readers.sharding import (
    Assignment,
    EpochPlan,
    PreviousWorkers,
    assign_rows,
    plan_epoch,
)
from training.readers.skew import DirichletPartition
from training.readers.units import Position, Unit, UnitQueue
from training.settings import TrainSettings
from training.transports.transport import Transport


class WorkerRows:
    """Chooses the rows of a worker.

    Args:
        settings: How to train.
        group_rows: Number of rows of each row group of the training split.
        transport: Has the rank of this worker and the number of all.
        partition: The rows of each worker; None: the workers divide all rows in each epoch.
    """

    def __init__(
        self,
        settings: TrainSettings,
        group_rows: Sequence[int],
        transport: Transport,
        partition: DirichletPartition | None,
    ) -> None:
        self._settings = settings
        self._group_rows = tuple(group_rows)
        self._rank, self._world_size = transport.rank, transport.world_size
        self._partition = partition

    def plan_epoch(
        self, epoch: int, first_step: int, previous_world_sizes: Sequence[PreviousWorkers]
    ) -> tuple[EpochPlan, Assignment]:
        """Return the plan of an epoch in equal parts, and this worker's rows from a step on.

        `previous_world_sizes`: workers that began this epoch; the present ones divide the rows that
        they left.
        """
        settings = self._settings
        if self._partition is not None:
            plan = self._partition.plan(batch_size=settings.batch_size, epoch=epoch)
        else:
            plan = plan_epoch(
                self._group_rows,
                world_size=self._world_size,
                batch_size=settings.batch_size,
                seed=settings.seed,
                epoch=epoch,
                previous_world_sizes=previous_world_sizes,
            )
        return plan, assign_rows(plan, rank=self._rank, epoch=epoch, first_step=first_step)

    def open_queue(self, start: Position) -> UnitQueue:
        """Return the work units from a position to the end of the run.

        Between two checkpoints, each worker takes about `checkpoint_steps` steps.
        """
        settings = self._settings
        rows_between_checkpoints = None
        if settings.checkpoint_steps:
            rows_of_a_step = settings.batch_size * self._world_size
            rows_between_checkpoints = settings.checkpoint_steps * rows_of_a_step
        return UnitQueue(
            self._group_rows,
            world_size=self._world_size,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epochs=settings.epochs,
            start=start,
            rows_between_checkpoints=rows_between_checkpoints,
        )

    def use_own_rows(self, unit: Unit | None, num_rows_read: int) -> Unit | None:
        """Return a unit, with as many of the worker's own rows if each row belongs to one worker.

        `num_rows_read`: rows that the worker has read in the run before the unit.
        """
        if unit is None or self._partition is None:
            return unit
        assignment = self._partition.replace_rows(
            unit.assignment, rank=self._rank, start=num_rows_read
        )
        return unit._replace(assignment=assignment)
