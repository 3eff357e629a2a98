"""The training loop of one worker: epochs of steps, validation of the average model, checkpoints.

Some methods need equal numbers of steps of all workers. Then all workers get equal parts of each
epoch and meet at its end. With all other methods workers draw work units and wait for nobody from
the first step to the last. The worker that draws the first unit of an epoch validates a snapshot of
the models. Each worker writes its own record and checkpoint when it crosses a boundary.

MPI and the simulator run the same coroutine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.algorithms.base import Algorithm, consensus_distance
from training.errors import DivergedError, ShardError
from training.flat_model import ModelState
from training.loop.checkpoints import Checkpoint, RankContent
from training.loop.metering import Meter, MeteredTransport
from training.loop.progress import EpochStats, Progress, ProgressReport
from training.loop.records import Record, RunFiles, merge_records
from training.loop.schedule import SampleClock
from training.loop.worker_state import (
    SharedBuffers,
    continue_worker,
    start_from_joint_model,
    worker_state,
)
from training.readers.sharding import (
    Assignment,
    EpochPlan,
    PreviousWorkers,
    assign_rows,
    plan_epoch,
)
from training.readers.skew import DirichletPartition
from training.readers.units import Boundary, Position, Unit, UnitQueue
from training.settings import TrainSettings
from training.workloads.gradients import Sums, reduce_sums
from training.workloads.work import ValidationPart, Work


class BestModel(NamedTuple):
    """The model of the lowest validation loss that a worker has validated."""

    val_loss: float = math.inf
    model: Tensor | None = None
    buffers: Tensor | None = None


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
        self._group_rows, self._num_rows = tuple(group_rows), sum(group_rows)
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
        self._partition = partition
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
        self._best = BestModel()
        self.history: list[Record] = []
        #: The records as lines of JSON, for checkpoints: torch takes 200 ms to save 400 records.
        self._history_lines: list[str] = []

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
        await self._save_best()
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
        saved_models = [BestModel(**state["best"]) for state in states]
        self._best = min([self._best, *saved_models], key=lambda best: best.val_loss)

    async def _continue_as_before(self, resume: Checkpoint) -> list[RankContent]:
        """Continue this worker of a checkpoint exactly as it was.

        Returns:
            Its state, as a list of one.
        """
        state = resume.load(self._transport.rank)
        self._restore_position(resume, state)
        self._num_rows_read = state["num_rows_read"]
        self._restore_history(_records_before(resume.epoch, state))
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
            histories = [_records_before(resume.epoch, state) for state in states]
            self._restore_history(merge_records(histories)[rank])
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

    def _restore_history(self, records: Sequence[Record]) -> None:
        """Replace the records of this worker."""
        self.history = list(records)
        self._history_lines = [json.dumps(record) for record in records]

    async def _train_epochs_together(self) -> None:
        """Train on equal parts of each epoch; all workers meet at its end.

        In each epoch: plan the steps, take them, write checkpoints at the interval that is set,
        validate together, and write a checkpoint.
        """
        while self._epoch < self._settings.epochs:
            plan, assignment = self._plan_epoch()
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
            await self._synchronize_and_validate()
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
        queue = self._open_queue()
        self._clock.begin_epoch(self._epoch, self._num_rows, num_trained=self._num_done)
        num_steps = math.ceil(self._num_rows / batch_size)
        # The counter returns its value after the addition; tickets begin at 0.
        ticket = await transport.count("tickets", 1) - 1
        unit = self._use_own_rows(queue.unit(ticket), self._num_rows_read)
        while unit is not None:
            await self._cross_boundaries(queue.pop_boundaries(), ticket)
            work.begin(unit.assignment)
            # The next unit is drawn before this one is trained on, so that its rows are read ahead.
            ticket = await transport.count("tickets", 1) - 1
            num_rows_read = self._num_rows_read + sum(unit.assignment.sizes)
            next_unit = self._use_own_rows(queue.unit(ticket), num_rows_read)
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

    def _plan_epoch(self) -> tuple[EpochPlan, Assignment]:
        """Return the plan of the epoch, and the part that this worker has not trained on yet."""
        settings, transport = self._settings, self._transport
        if self._partition is not None:
            plan = self._partition.plan(batch_size=settings.batch_size, epoch=self._epoch)
        else:
            plan = plan_epoch(
                self._group_rows,
                world_size=transport.world_size,
                batch_size=settings.batch_size,
                seed=settings.seed,
                epoch=self._epoch,
                previous_world_sizes=self._previous_world_sizes,
            )
        assignment = assign_rows(
            plan, rank=transport.rank, epoch=self._epoch, first_step=self._num_done
        )
        return plan, assignment

    def _needs_checkpoint(self, step: int, num_steps: int) -> bool:
        """Return whether a checkpoint is due after a step, which counts from 1.

        It is due after each multiple of the interval, but not at the end of the epoch, where one is
        written anyway.
        """
        interval = self._settings.checkpoint_steps
        return interval is not None and step % interval == 0 and step < num_steps

    def _open_queue(self) -> UnitQueue:
        """Return the work units from the present position to the end of the run.

        Between two checkpoints, each worker takes about `checkpoint_steps` steps.
        """
        settings, world_size = self._settings, self._transport.world_size
        rows_between_checkpoints = None
        if settings.checkpoint_steps:
            rows_between_checkpoints = settings.checkpoint_steps * settings.batch_size * world_size
        return UnitQueue(
            self._group_rows,
            world_size=world_size,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epochs=settings.epochs,
            start=Position(self._epoch, self._num_done),
            rows_between_checkpoints=rows_between_checkpoints,
        )

    def _use_own_rows(self, unit: Unit | None, num_rows_read: int) -> Unit | None:
        """Return a unit, with as many of the worker's own rows if each row belongs to one worker.

        `num_rows_read`: rows that the worker has read in the run before the unit.
        """
        if unit is None or self._partition is None:
            return unit
        rank = self._transport.rank
        assignment = self._partition.replace_rows(unit.assignment, rank=rank, start=num_rows_read)
        return unit._replace(assignment=assignment)

    async def _cross_boundaries(self, boundaries: Sequence[Boundary], ticket: int) -> None:
        """End epochs and write checkpoints on the way to a unit.

        A boundary is the begin of an epoch or a place for a checkpoint within it. The worker that
        draws the first unit of an epoch validates, and all do so at the end of the run.

        A worker that was stopped for a while crosses many boundaries without a step. Its state is
        the same at all of them, but for records of epochs in which it did nothing. So it writes one
        checkpoint for all.

        `ticket`: of the unit that the worker has drawn.
        """
        # These positions were crossed, but have no checkpoint of this worker yet.
        positions: list[Position] = []
        for boundary in boundaries:
            epoch, num_done = boundary.position
            if num_done == 0:
                is_end = epoch == self._settings.epochs
                validates = boundary.ticket == ticket
                # The end of this epoch changes the state, so the positions before it are saved.
                if is_end or validates or self._stats.steps:
                    await self._checkpoint(positions)
                    positions = []
                if is_end:
                    await self._synchronize_and_validate()
                elif validates:
                    await self._validate_snapshot()
                else:
                    self._finish_epoch({}, None)
            positions.append(boundary.position)
        await self._checkpoint(positions)

    async def _synchronize_and_validate(self) -> None:
        """End an epoch with all workers; each validates the method's model on its part.

        The method's joint model is what a run delivers, such as the mean of the workers' models.
        At the end of the run each worker also validates its own model on the whole split, to show
        how far the workers differ. Time in this counts as validation, except that of messages
        which the method needs anyway.
        """
        work, transport, meter = self._work, self._transport, self._meter
        meter.doing = "at the end of the epoch"
        await self._algorithm.quiesce()
        local_model, joint_model = work.model.empty(), work.model.empty()
        # The worker's own model is copied before `flush`, which may change it.
        with meter.attribute_all_to("validate"):
            await self._algorithm.current(local_model)
        await self._algorithm.flush()
        with meter.attribute_all_to("validate"):
            await self._algorithm.result(joint_model)
            distance = await consensus_distance(local_model, joint_model, transport)
            state = ModelState(joint_model, await self._buffers.mean())
            share = ValidationPart(transport.rank, transport.world_size)
            sums = await reduce_sums(await work.validate(state, share), transport)
            validation = self._describe_validation(sums, distance)
            is_last = self._epoch == self._settings.epochs - 1
            if is_last and transport.world_size > 1 and work.validates_alone:
                local_state = ModelState(local_model, work.buffers())
                local_sums = await work.validate(local_state, ValidationPart(0, 1))
                validation["worker_val_loss"] = local_sums.mean_loss
                validation["worker_val_accuracy"] = local_sums.accuracy
        # All workers have the same result, so only rank 0 keeps the model.
        self._finish_epoch(validation, state if transport.rank == 0 else None)

    async def _validate_snapshot(self) -> None:
        """End this worker's epoch; validate a snapshot of the model on the whole split.

        The other workers train meanwhile, so the snapshot may mix models of different steps.
        """
        self._meter.doing = "validating"
        model = self._work.model.empty()
        with self._meter.attribute_all_to("validate"):
            distance = await self._algorithm.snapshot(model)
            state = ModelState(model, await self._buffers.snapshot())
            sums = await self._work.validate(state, ValidationPart(0, 1))
        self._finish_epoch(self._describe_validation(sums, distance), state)

    def _describe_validation(self, sums: Sums, distance: float) -> dict[str, Any]:
        """Return the part of a record that is about all workers.

        `sums`: over the validation split. `distance`: consensus distance, a measure of how far the
        workers' models are apart.

        Raises:
            ShardError: The validation split has no events.
        """
        if not sums.samples:
            raise ShardError(
                "the validation split has no events. Make the features again, from more events."
            )
        self._progress.consensus_distance = distance
        return {
            "train_rows": self._num_rows,
            "samples_seen_by_all": (self._epoch + 1) * self._num_rows,
            "consensus_distance": distance,
            "val_loss": sums.mean_loss,
            "val_accuracy": sums.accuracy,
        }

    def _finish_epoch(self, validation: dict[str, Any], state: ModelState | None) -> None:
        """Write the record of this worker's epoch, note the best model, and begin the next epoch.

        `validation`: from `_describe_validation`; empty if another worker validates. `state`: the
        validated model, to note it if its loss is the lowest; None to leave that to another worker.

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
        self.history.append(record)
        self._history_lines.append(json.dumps(record))
        if validation and not math.isfinite(record["val_loss"]):
            raise DivergedError(
                f"the validation loss of epoch {self._epoch + 1} is {record['val_loss']}: training "
                f"diverged. Lower train.learning_rate "
                f"(now {self._settings.effective_learning_rate:g} in effect)."
            )
        if state is not None and record["val_loss"] < self._best.val_loss:
            model, buffers = torch.from_numpy(state.parameters), torch.from_numpy(state.buffers)
            self._best = BestModel(record["val_loss"], model, buffers)
        self._stats.begin()
        self._epoch += 1
        self._num_done = 0
        self._previous_world_sizes = []

    async def _save_best(self) -> None:
        """Save the best model of the run; the worker that has it writes it.

        Each worker knows only the best model that it has validated itself.
        """
        # The sum of vectors with one entry per worker gives all losses to each.
        losses = np.zeros(self._transport.world_size)
        losses[self._transport.rank] = self._best.val_loss
        await self._transport.all_reduce_sum(losses)
        best_rank = int(np.argmin(losses))
        _, model, buffers = self._best
        if best_rank == self._transport.rank and model is not None and buffers is not None:
            self._files.save_best(ModelState(model.numpy(), buffers.numpy()))

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
            "best": self._best._asdict(),
            "history": "\n".join(self._history_lines),
        }
        checkpoints.write_rank(positions, transport.world_size, transport.rank, rank_state)
        if self._is_static:
            # The barrier ensures that nobody averages before all have written their vectors.
            await transport.barrier()
        if not self._is_static or transport.rank == 0:
            checkpoints.complete(positions, transport.world_size)
        self._meter.lap("checkpoint")


def _records_before(epoch: int, state: RankContent) -> list[Record]:
    """Return the records of a worker of the epochs before `epoch`.

    The state may have later ones: a worker that crossed several positions at once wrote one state
    for all.
    """
    records: list[Record] = [json.loads(line) for line in state["history"].splitlines()]
    return [record for record in records if record["epoch"] < epoch]
