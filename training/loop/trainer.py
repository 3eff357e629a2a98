"""The training loop of one worker: epochs of steps, validation of the average model, checkpoints.

Some methods need equal numbers of steps of all workers. Then all workers get equal parts of each
epoch and meet at its end. With all other methods workers draw work units and wait for nobody from
the first step to the last. The worker that draws the first unit of an epoch validates a snapshot of
the models. Each worker writes its own record and checkpoint when it crosses a boundary.

MPI and the simulator run the same coroutine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from training.algorithms.base import Algorithm
from training.errors import DivergedError
from training.loop.checkpoints import Checkpoint, RankContent
from training.loop.epoch_stats import EpochStats
from training.loop.history import History, records_before
from training.loop.metering import Meter, MeteredTransport
from training.loop.progress import Progress, ProgressReport
from training.loop.records import Record, RunFiles, merge_records
from training.loop.schedule import SampleClock
from training.loop.validation import Validator
from training.loop.worker_rows import WorkerRows
from training.loop.worker_state import (
    SharedBuffers,
    continue_worker,
    start_from_joint_model,
    worker_state,
)
from training.readers.sharding import PreviousWorkers
from training.readers.skew import DirichletPartition
from training.readers.units import Boundary, Position
from training.settings import TrainSettings
from training.workloads.work import Work


class Trainer:
    """The run of one worker: `run` trains to the end.

    Args:
        settings: How to train.
        group_rows: Number of rows of each row group of the training split.
        work: Batches, gradients and validation.
        algorithm: The method: steps of the optimiser, and exchange of models with other workers.
        transport: Messages to the other workers.
        meter: Measures time and bytes.
        files: Storage of records, checkpoints and the best model.
        on_progress: Called from time to time; None for workers without a progress display.
        partition: The rows of each worker; None: the workers divide all rows in each epoch.
    """

    def __init__(
        self,
        settings: TrainSettings,
        group_rows: Sequence[int],
        work: Work,
        algorithm: Algorithm,
        transport: MeteredTransport,
        meter: Meter,
        files: RunFiles,
        on_progress: Callable[[Progress], None] | None,
        *,
        partition: DirichletPartition | None = None,
    ) -> None:
        self._settings = settings
        self._rows = WorkerRows(settings, group_rows, transport, partition)
        self._num_rows = sum(group_rows)
        """Rows of an epoch of all workers."""
        self._work = work
        self._algorithm = algorithm
        self._transport = transport
        self._meter = meter
        self._files = files
        self._stats = EpochStats(work, algorithm, meter)
        if files.checkpoints is not None:
            self._stats.loop_counters["checkpoints"] = 0
        self._progress = ProgressReport(
            on_progress, self._stats, meter, settings.epochs, self._num_rows
        )
        self._clock = SampleClock(settings)
        self._rate_is_constant = settings.schedule.is_constant
        self._is_static = settings.has_static_shards
        """Whether workers get equal parts of each epoch, instead of drawing work units."""
        self._epoch = 0
        self._num_done = 0
        """Finished steps of the epoch; its finished rows, with work units."""
        self._previous_world_sizes: list[PreviousWorkers] = []
        """Workers that began this epoch before; the present ones divide the rows that they left."""
        self._num_rows_read = 0
        """Rows that this worker has read in the run, with work units."""
        self._sample_counter = 0
        """Samples of all workers, for the learning rate."""
        self._buffers = SharedBuffers(work, transport)
        self._validator = Validator(
            work, algorithm, transport, meter, self._buffers, self._num_rows
        )
        self._history = History()

    @property
    def history(self) -> list[Record]:
        """The records of this worker's finished epochs."""
        return self._history.records

    async def run(self, resume: Checkpoint | None = None) -> None:
        """Train to the end, from the beginning or from a checkpoint, and save the best model.

        All workers call this together.
        """
        await self._start(resume)
        # A checkpoint at the end of the run leaves nothing to train.
        if self._epoch < self._settings.epochs:
            if self._is_static:
                await self._train_epochs_together()
            else:
                await self._train_without_waiting()
        await self._validator.save_best(self._files)
        await self._algorithm.quiesce()
        await self._algorithm.close()
        await self._buffers.close()

    async def _start(self, resume: Checkpoint | None) -> None:
        """Start all workers together, from the initial model or from a checkpoint.

        With the same number of workers, each continues exactly as it was. With another number, all
        start from the joint model of the checkpoint.
        """
        # In each case the files begin before the common start, and checkpoints come after it.
        if resume is None:
            self._files.begin([], Position(0, 0), None)
            await start_from_joint_model(self._work, self._algorithm, [])
            states: Sequence[RankContent] = []
        elif resume.world_size == self._transport.world_size:
            states = await self._continue_as_before(resume)
        else:
            states = await self._continue_for_other_workers(resume)
        if not self._is_static:
            await self._buffers.share()
        # The time of the start belongs to no epoch, so the meter is reset with the statistics.
        self._meter.lap("start")
        self._stats.begin()
        self._stats.load_states([state["stats"] for state in states])
        self._validator.restore_best([state["best"] for state in states])

    async def _continue_as_before(self, resume: Checkpoint) -> list[RankContent]:
        """Continue this worker of a checkpoint exactly as it was.

        Returns:
            Its state, as a list of one.
        """
        state = resume.load(self._transport.rank)
        self._restore_position(resume, state)
        self._num_rows_read = state["num_rows_read"]
        self._history = History(records_before(resume.epoch, state["history"]))
        self._files.begin(self.history, resume.position, resume)
        await continue_worker(self._work, self._algorithm, state)
        return [state]

    async def _continue_for_other_workers(self, resume: Checkpoint) -> list[RankContent]:
        """Continue a run of another number of workers.

        All start from the joint model. In equal parts of an epoch, the workers divide the rows that
        the earlier ones left.

        Returns:
            The states whose statistics this worker takes over; the workers take them in turn.
        """
        rank, world_size = self._transport.rank, self._transport.world_size
        states = [resume.load(saved_rank) for saved_rank in range(resume.world_size)]
        self._restore_position(resume, states[0])
        if self._is_static and resume.step:
            # The present workers count their steps of the epoch from 0.
            stopped = PreviousWorkers(resume.world_size, num_steps=self._num_done)
            self._previous_world_sizes.append(stopped)
            self._num_done = 0
        if rank < resume.world_size:
            # The totals over all ranks are computed now, while the records of all are at hand.
            histories = [records_before(resume.epoch, state["history"]) for state in states]
            self._history = History(merge_records(histories)[rank])
        self._files.begin(self.history, resume.position, resume)
        await start_from_joint_model(self._work, self._algorithm, states)
        return states[rank::world_size]

    def _restore_position(self, resume: Checkpoint, state: RankContent) -> None:
        """Set epoch, finished steps, and earlier workers of the epoch as in a checkpoint.

        The step of a checkpoint counts from the begin of the epoch. The finished steps count only
        those of the workers that wrote it.
        """
        self._epoch, self._num_done = resume.position
        if self._is_static and resume.step:
            for workers in state["previous_world_sizes"]:
                previous = PreviousWorkers(*workers)
                self._previous_world_sizes.append(previous)
                self._num_done -= previous.num_steps

    async def _train_epochs_together(self) -> None:
        """Train on equal parts of each epoch; all workers meet at its end.

        In each epoch: plan the steps, take them, write checkpoints at the interval that is set,
        validate together, and write a checkpoint.
        """
        while self._epoch < self._settings.epochs:
            plan, assignment = self._rows.plan_epoch(
                self._epoch, self._num_done, self._previous_world_sizes
            )
            # These are the events of each remaining step, of all workers together.
            batch_sizes = plan.samples[self._num_done :].tolist()
            # The counter is set at the end, since steps with a constant rate do not count samples.
            counter_at_end = self._sample_counter + sum(batch_sizes)
            self._clock.begin_epoch(
                self._epoch,
                self._num_rows,
                num_trained=self._num_rows - sum(batch_sizes),
                counter=self._sample_counter,
            )
            self._work.begin(assignment)
            # Steps are shown and saved from the begin of the epoch, with those of earlier workers.
            previous_steps = sum(workers.num_steps for workers in self._previous_world_sizes)
            num_steps = previous_steps + plan.num_steps
            first_step = previous_steps + self._num_done + 1
            for step, global_batch_size in enumerate(batch_sizes, first_step):
                await self._step(global_batch_size)
                self._progress.report(self._epoch, step, num_steps)
                if self._needs_checkpoint(step, num_steps):
                    await self._checkpoint([Position(self._epoch, step)])
            self._sample_counter = counter_at_end
            await self._end_epoch_together()
            await self._checkpoint([Position(self._epoch, 0)])

    async def _train_without_waiting(self) -> None:
        """Train on work units, each read ahead; the workers meet only at the end of the run.

        A work unit is some rows of an epoch, divided into steps. A worker draws the number of a
        unit, its ticket, from a counter that all workers share, so a slow worker draws fewer units.
        A ticket behind the last unit ends the loop. On the way to each unit the worker ends epochs
        and writes checkpoints.
        """
        transport, work = self._transport, self._work
        batch_size = self._settings.batch_size
        queue = self._rows.open_queue(Position(self._epoch, self._num_done))
        self._clock.begin_epoch(self._epoch, self._num_rows, num_trained=self._num_done)
        num_steps = math.ceil(self._num_rows / batch_size)
        # The counter returns its value after the addition; tickets begin at 0.
        ticket = await transport.count("tickets", 1) - 1
        unit = self._rows.use_own_rows(queue.unit(ticket), self._num_rows_read)
        while unit is not None:
            await self._cross_boundaries(queue.pop_boundaries(), ticket)
            work.begin(unit.assignment)
            # The next unit is drawn before this one is trained on, so that its rows are read ahead.
            ticket = await transport.count("tickets", 1) - 1
            num_rows_read = self._num_rows_read + sum(unit.assignment.sizes)
            next_unit = self._rows.use_own_rows(queue.unit(ticket), num_rows_read)
            if next_unit is not None:
                work.prefetch(next_unit.assignment)
            row = unit.start.num_done
            for step_size in unit.assignment.sizes:
                await self._step(step_size)
                row += step_size
                self._progress.report(self._epoch, row // batch_size, num_steps)
            await self._buffers.publish()
            unit, self._num_rows_read = next_unit, num_rows_read
        await self._cross_boundaries(queue.pop_boundaries(), ticket)

    async def _step(self, global_batch_size: int) -> None:
        """Take one step: read a batch, set the learning rate, and let the method train on it.

        `global_batch_size`: samples of this step of all workers, if they take it together;
        otherwise not used.
        """
        work, meter, algorithm = self._work, self._meter, self._algorithm
        meter.doing = "reading"
        batch_size = work.next_batch()
        meter.lap("read")
        meter.doing = "computing"
        if not self._rate_is_constant:
            # Workers in step know the samples of all. The others count them by messages.
            if algorithm.traits.synchronous:
                self._sample_counter += global_batch_size
            else:
                self._sample_counter = await self._transport.count("samples", batch_size)
            rate = self._clock.learning_rate(self._sample_counter)
            algorithm.optimizer.param_groups[0]["lr"] = rate
        await algorithm.step(work.compute_gradient, batch_size)
        meter.lap("compute")
        self._stats.steps += 1

    def _needs_checkpoint(self, step: int, num_steps: int) -> bool:
        """Return whether a checkpoint is due after a step, which counts from 1.

        It is due after each multiple of the interval, but not at the end of the epoch, where one is
        written anyway.
        """
        interval = self._settings.checkpoint_steps
        return interval is not None and step % interval == 0 and step < num_steps

    async def _cross_boundaries(self, boundaries: Sequence[Boundary], ticket: int) -> None:
        """End epochs and write checkpoints on the way to a unit.

        A boundary is the begin of an epoch or a place for a checkpoint within it. The worker that
        draws the first unit of an epoch validates, and all do so at the end of the run.

        A worker that was stopped for a while crosses many boundaries without a step. Its state is
        the same at all of them, but for records of epochs in which it did nothing. So it writes one
        checkpoint for all.

        `ticket`: of the unit that the worker has drawn.
        """
        unsaved_positions: list[Position] = []
        for boundary in boundaries:
            epoch, num_done = boundary.position
            if num_done == 0:
                is_end = epoch == self._settings.epochs
                validates = boundary.ticket == ticket
                # The end of an epoch changes the state, so the positions before it are saved. At
                # the end of the run, all wait for this worker, and its last checkpoint is enough.
                if is_end:
                    unsaved_positions = []
                elif validates or self._stats.steps:
                    await self._checkpoint(unsaved_positions)
                    unsaved_positions = []
                if is_end:
                    await self._end_epoch_together()
                elif validates:
                    self._finish_epoch(await self._validator.validate_snapshot(self._epoch))
                else:
                    self._finish_epoch({})
            unsaved_positions.append(boundary.position)
        await self._checkpoint(unsaved_positions)

    async def _end_epoch_together(self) -> None:
        """Validate with all workers, and end the epoch."""
        is_last = self._epoch == self._settings.epochs - 1
        validation = await self._validator.validate_together(self._epoch, is_last=is_last)
        self._finish_epoch(validation)

    def _finish_epoch(self, validation: dict[str, Any]) -> None:
        """Write the record of this worker's epoch, and begin the next epoch.

        `validation`: from `Validator`; empty if another worker validates.

        Raises:
            DivergedError: The validation loss is NaN or infinite.
        """
        record: Record = {
            "epoch": self._epoch,
            "rank": self._transport.rank,
            "workers": self._transport.world_size,
            **self._stats.record(),
            **validation,
        }
        self._files.record(record)
        self._history.append(record)
        if validation:
            self._progress.consensus_distance = validation["consensus_distance"]
            if not math.isfinite(validation["val_loss"]):
                raise DivergedError(
                    f"the validation loss of epoch {self._epoch + 1} is {validation['val_loss']}: "
                    f"training diverged. Lower train.learning_rate "
                    f"(now {self._settings.effective_learning_rate:g} in effect)."
                )
        self._stats.begin()
        self._epoch += 1
        self._num_done = 0
        self._previous_world_sizes = []

    async def _checkpoint(self, positions: Sequence[Position]) -> None:
        """Write this worker's state, which holds at all these positions; none: write nothing.

        Workers with equal parts write together, while none averages. With work units each worker
        writes when it crosses a boundary: its units before it are done, and none behind it. The
        last one then completes the checkpoint.
        """
        checkpoints, transport = self._files.checkpoints, self._transport
        if checkpoints is None or not positions:
            return
        self._meter.doing = "writing a checkpoint"
        # The counter has only the checkpoints that `checkpoint_steps` asks for.
        num_within_epochs = sum(position.num_done > 0 for position in positions)
        self._stats.loop_counters["checkpoints"] += num_within_epochs
        if self._is_static:
            await self._algorithm.quiesce()
        rank_state: RankContent = {
            **await worker_state(self._work, self._algorithm),
            "stats": self._stats.state(),
            "num_rows_read": self._num_rows_read,
            "previous_world_sizes": [tuple(workers) for workers in self._previous_world_sizes],
            "best": self._validator.best._asdict(),
            "history": self._history.text(),
        }
        checkpoints.write_rank(positions, transport.world_size, transport.rank, rank_state)
        if self._is_static:
            # The barrier ensures that nobody averages before all have written their vectors.
            await transport.barrier()
        if not self._is_static or transport.rank == 0:
            checkpoints.complete(positions, transport.world_size)
        self._meter.lap("checkpoint")
