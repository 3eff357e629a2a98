"""The training loop of one worker: epochs of steps, validation of the average model, checkpoints, records.

Workers that must take equal numbers of steps get equal parts of each epoch and meet at its end. All others draw work
units and wait for nobody from the first step to the last: whoever draws the first unit of an epoch validates a snapshot
of the models, and each worker writes its own record and checkpoint when it passes. MPI and the simulator run the same
coroutine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from training.algorithms.base import Algorithm, consensus_distance
from training.errors import DivergedError, ShardError
from training.flat_model import ModelState
from training.loop.checkpoints import Checkpoint
from training.loop.metering import Meter, MeteredTransport
from training.loop.progress import EpochStats, Progress, ProgressReport
from training.loop.records import RunFiles, merge_records
from training.loop.schedule import SampleClock
from training.loop.worker_state import SharedBuffers, start, worker_state
from training.readers.sharding import Assignment, EpochPlan, assign_rows, plan_epoch
from training.readers.skew import DirichletPartition
from training.readers.units import Boundary, Position, Unit, UnitQueue
from training.settings import TrainSettings
from training.workloads.gradients import Sums, reduce_sums
from training.workloads.work import ValidationPart, Work


class Trainer:
    """One worker's run.

    `rows`: rows of each row group of the training split. `on_progress`: called from time to time; None for workers
    without a progress display. `partition`: who owns which rows; None: the workers divide all rows in each epoch.
    """

    def __init__(
        self,
        settings: TrainSettings,
        rows: Sequence[int],
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
        self._rows, self._num_rows = tuple(rows), sum(rows)
        self._work = work
        self._algorithm = algorithm
        self._transport = transport
        self._meter = meter
        self._files = files
        self._account = EpochStats(work, algorithm, meter)
        if files.checkpoints is not None:
            self._account.own["checkpoints"] = 0
        self._progress = ProgressReport(
            on_progress, self._account, meter, settings.epochs, self._num_rows
        )
        self._clock = SampleClock(settings)
        self._rate_is_constant = settings.schedule.is_constant
        self._is_static = settings.has_static_shards
        self._partition = partition
        self._read = 0
        self._epoch = self._done = self._counted = 0
        self._dealt: list[tuple[int, int]] = []
        """Numbers of workers that began this epoch before, and their steps: what they left is dealt anew."""
        self._buffers = SharedBuffers(work, transport)
        self._best: dict[str, Any] = {"val_loss": math.inf, "model": None, "buffers": None}
        self.history: list[dict[str, Any]] = []
        #: The records as lines of JSON, for checkpoints: torch takes 200 ms to save the values of 400 records.
        self._lines: list[str] = []

    async def run(self, resume: Checkpoint | None = None) -> None:
        """Train to the end, from the beginning or from a checkpoint."""
        parts, mine, is_same = ([], [], False) if resume is None else self._recall(resume)
        # Before any worker can write a checkpoint: they all wait for each other in start() or in the checkpoint.
        self._files.begin(
            self.history, (0, 0) if resume is None else (resume.epoch, resume.step), resume
        )
        await start(self._work, self._algorithm, parts, is_same=is_same)
        if not self._is_static:
            await self._buffers.share()
        self._meter.lap("start")
        self._account.begin()
        self._account.load_states([part["account"] for part in mine])
        if self._epoch < self._settings.epochs:
            await (self._epochs_together() if self._is_static else self._epochs_without_waiting())
        await self._keep_best()
        await self._algorithm.quiesce()
        await self._algorithm.close()
        await self._buffers.close()

    async def _epochs_together(self) -> None:
        """Epochs of equal parts; all workers meet at the end of each."""
        settings = self._settings
        while self._epoch < settings.epochs:
            plan, assignment = self._assignment()
            left = plan.samples[self._done :]
            self._clock.begin(
                self._epoch,
                self._num_rows,
                done=self._num_rows - int(left.sum()),
                counted=self._counted,
            )
            end = self._counted + int(left.sum())
            self._work.begin(assignment)
            before = sum(steps for _, steps in self._dealt)
            for step, of_all in enumerate(left.tolist(), before + self._done + 1):
                await self._step(of_all)
                self._progress.tell(self._epoch, step, before + plan.num_steps)
                if (
                    settings.checkpoint_steps
                    and step % settings.checkpoint_steps == 0 < before + plan.num_steps - step
                ):
                    await self._checkpoint([(self._epoch, step)])
            self._counted = end
            await self._meet()
            await self._checkpoint([(self._epoch, 0)])

    async def _epochs_without_waiting(self) -> None:
        """Work units by tickets, one read ahead; the workers meet at the end of the run only."""
        settings, transport, work = self._settings, self._transport, self._work
        place, every = Position(self._epoch, self._done), settings.checkpoint_steps
        queue = UnitQueue(
            self._rows,
            world_size=transport.world_size,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epochs=settings.epochs,
            start=place,
            rows_between=every * settings.batch_size * transport.world_size if every else None,
        )
        self._clock.begin(place.epoch, self._num_rows, done=place.row)
        num_steps = -(-self._num_rows // settings.batch_size)
        ticket = await transport.count("tickets", 1) - 1
        unit = queue.take(ticket)
        assignment = self._assign(unit, self._read)
        while unit is not None and assignment is not None:
            await self._pass(queue.passed(), ticket)
            work.begin(assignment)
            ticket = await transport.count("tickets", 1) - 1
            following, read = queue.take(ticket), self._read + sum(assignment.sizes)
            next_assignment = self._assign(following, read)
            if next_assignment is not None:
                work.prefetch(next_assignment)
            row = unit.start.row
            for size in assignment.sizes:
                await self._step(size)
                row += size
                self._progress.tell(self._epoch, row // settings.batch_size, num_steps)
            await self._buffers.publish()
            unit, assignment, self._read = following, next_assignment, read
        await self._pass(queue.passed(), ticket)

    def _assignment(self) -> tuple[EpochPlan, Assignment]:
        """The plan of the epoch, and this worker's part of what is left of it."""
        settings, transport = self._settings, self._transport
        if self._partition is None:
            plan = plan_epoch(
                self._rows,
                world_size=transport.world_size,
                batch_size=settings.batch_size,
                seed=settings.seed,
                epoch=self._epoch,
                before=self._dealt,
            )
        else:
            plan = self._partition.plan(batch_size=settings.batch_size, epoch=self._epoch)
        return plan, assign_rows(
            plan, rank=transport.rank, epoch=self._epoch, first_step=self._done
        )

    def _assign(self, unit: Unit | None, read: int) -> Assignment | None:
        """What this worker reads for a work unit, after it read a number of rows: the unit, or as many of its own."""
        if unit is None or self._partition is None:
            return None if unit is None else unit.assignment
        return self._partition.following(unit.assignment, rank=self._transport.rank, start=read)

    async def _pass(self, boundaries: Sequence[Boundary], ticket: int) -> None:
        """End epochs and write checkpoints on the way to a unit; whoever draws the first unit of an epoch validates.

        A worker that was stopped for a while passes many boundaries without a step. Its state is the same at all of
        them, but for records of epochs in which it did nothing: it writes one checkpoint, which counts for all.
        """
        passed: list[Position] = []
        for boundary in boundaries:
            epoch, row = boundary.position
            if not row:
                is_end, validates = epoch == self._settings.epochs, boundary.ticket == ticket
                if is_end or validates or self._account.steps:
                    await self._checkpoint(passed)
                    passed = []
                await (self._meet() if is_end else self._end_epoch(validates=validates))
            passed.append(boundary.position)
        await self._checkpoint(passed)

    async def _step(self, of_all: int) -> None:
        """Take one step; `of_all`: the samples of this step of all workers, if they take it together."""
        work, meter, algorithm = self._work, self._meter, self._algorithm
        meter.doing = "reading"
        num_samples = work.next_batch()
        meter.lap("read")
        meter.doing = "computing"
        if not self._rate_is_constant:
            if algorithm.traits.synchronous:
                self._counted += of_all
            else:
                self._counted = await self._transport.count("samples", num_samples)
            algorithm.optimizer.param_groups[0]["lr"] = self._clock.learning_rate(self._counted)
        await algorithm.step(work.compute_gradient, num_samples)
        meter.lap("compute")
        self._account.steps += 1

    async def _meet(self) -> None:
        """End an epoch with all workers: validate the model of the method, each on its part."""
        work, transport, meter = self._work, self._transport, self._meter
        meter.doing = "at the end of the epoch"
        await self._algorithm.quiesce()
        own, result = work.model.empty(), work.model.empty()
        with meter.attribute_all_to("validate"):
            await self._algorithm.current(own)
        await self._algorithm.flush()
        with meter.attribute_all_to("validate"):
            await self._algorithm.result(result)
            distance = await consensus_distance(own, result, transport)
            state = ModelState(result, await self._buffers.mean())
            sums = await work.validate(state, ValidationPart(transport.rank, transport.world_size))
            facts = self._facts(await reduce_sums(sums, transport), distance)
            if (
                self._epoch == self._settings.epochs - 1
                and transport.world_size > 1
                and work.validates_alone
            ):
                alone = await work.validate(ModelState(own, work.buffers()), ValidationPart(0, 1))
                facts |= {"worker_val_loss": alone.mean_loss, "worker_val_accuracy": alone.accuracy}
        self._record(facts, None if transport.rank else state)

    async def _end_epoch(self, *, validates: bool) -> None:
        """End this worker's epoch; one worker validates a snapshot of the model on the whole split."""
        if not validates:
            self._record({}, None)
            return
        self._meter.doing, result = "validating", self._work.model.empty()
        with self._meter.attribute_all_to("validate"):
            distance = await self._algorithm.snapshot(result)
            state = ModelState(result, await self._buffers.snapshot())
            totals = await self._work.validate(state, ValidationPart(0, 1))
        self._record(self._facts(totals, distance), state)

    def _facts(self, totals: Sums, distance: float) -> dict[str, Any]:
        if not totals.samples:
            raise ShardError(
                "the validation split has no events. Make the features again, from more events."
            )
        self._progress.distance = distance
        return {
            "train_rows": self._num_rows,
            "samples_seen_by_all": (self._epoch + 1) * self._num_rows,
            "consensus_distance": distance,
            "val_loss": totals.mean_loss,
            "val_accuracy": totals.accuracy,
        }

    def _record(self, facts: dict[str, Any], state: ModelState | None) -> None:
        """Write the record of this worker's epoch, and begin the next; keep the model in memory if it is the best."""
        who = {
            "epoch": self._epoch,
            "rank": self._transport.rank,
            "workers": self._transport.world_size,
        }
        record = who | self._account.record() | facts
        self._files.record(record)
        self.history.append(record)
        self._lines.append(json.dumps(record))
        if facts and not math.isfinite(record["val_loss"]):
            raise DivergedError(
                f"the validation loss of epoch {self._epoch + 1} is {record['val_loss']}: training diverged. "
                f"Lower train.learning_rate (now {self._settings.effective_learning_rate:g} in effect)."
            )
        if state is not None and record["val_loss"] < self._best["val_loss"]:
            model, buffers = map(torch.from_numpy, state)
            self._best = {"val_loss": record["val_loss"], "model": model, "buffers": buffers}
        self._account.begin()
        self._epoch, self._done, self._dealt = self._epoch + 1, 0, []

    async def _keep_best(self) -> None:
        rank, losses = self._transport.rank, np.zeros(self._transport.world_size)
        losses[rank] = self._best["val_loss"]
        await self._transport.all_reduce_sum(losses)
        if int(np.argmin(losses)) == rank and self._best["model"] is not None:
            self._files.save_best(
                ModelState(self._best["model"].numpy(), self._best["buffers"].numpy())
            )

    async def _checkpoint(self, positions: Sequence[tuple[int, int]]) -> None:
        """Write this worker's state: all workers together while none averages, or, with work units, when it passes.

        A state between two units is complete: the units before the position are done by someone, and none behind it.
        """
        checkpoints, transport = self._files.checkpoints, self._transport
        if checkpoints is None or not positions:
            return
        self._meter.doing = "writing a checkpoint"
        self._account.own["checkpoints"] += sum(step > 0 for _, step in positions)
        if self._is_static:
            await self._algorithm.quiesce()
        content = await worker_state(self._work, self._algorithm) | {
            "account": self._account.state(),
            "read": self._read,
            "dealt": self._dealt,
            "best": self._best,
            "history": "\n".join(self._lines),
        }
        checkpoints.write_rank(positions, transport.world_size, transport.rank, content)
        if self._is_static:
            # After the barrier no vector can have been averaged before another worker wrote its own.
            await transport.barrier()
        if not self._is_static or transport.rank == 0:
            checkpoints.complete(positions, transport.world_size)
        self._meter.lap("checkpoint")

    def _recall(
        self, resume: Checkpoint
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
        """Take over place, records and best model of a checkpoint.

        Returns:
            Its parts, only this worker's if the number of workers is the same; those that this worker continues; and
            whether the number is the same.
        """
        rank, world_size = self._transport.rank, self._transport.world_size
        is_same = resume.world_size == world_size
        parts = [resume.load(each) for each in ([rank] if is_same else range(resume.world_size))]
        # A worker that passed several places at once wrote one state for all of them.
        histories = [[json.loads(line) for line in part["history"].splitlines()] for part in parts]
        histories = [
            [each for each in records if each["epoch"] < resume.epoch] for records in histories
        ]
        if is_same:
            self.history, self._read = histories[0], parts[0]["read"]
        elif rank < len(parts):
            # The records of ranks that are gone are kept in the totals.
            self.history = merge_records(histories)[rank]
        self._lines = [json.dumps(record) for record in self.history]
        self._epoch, self._done = resume.epoch, resume.step
        if self._is_static and resume.step:
            self._dealt = [(workers, steps) for workers, steps in parts[0]["dealt"]]
            self._done -= sum(steps for _, steps in self._dealt)
            if not is_same:
                self._dealt, self._done = [*self._dealt, (resume.world_size, self._done)], 0
        mine = parts if is_same else parts[rank::world_size]
        self._best = min(
            (part["best"] for part in mine), key=lambda best: best["val_loss"], default=self._best
        )
        return parts, mine, is_same
