"""The training loop of one worker: epochs of steps, validation of the average model, checkpoints, records.

MPI and the simulator run the same coroutine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from training.algorithms.base import Algorithm, mean_over_workers
from training.errors import DivergedError
from training.loop.checkpoints import Checkpoint
from training.loop.metering import Meter, MeteredTransport
from training.loop.records import RunFiles
from training.loop.schedule import learning_rate
from training.readers.sharding import EpochPlan, plan_epoch
from training.settings import TrainSettings
from training.transports.transport import Vector
from training.workloads.sums import Sums, reduce_sums
from training.workloads.work import ValidationShare, Work

_SECONDS_BETWEEN_PROGRESS: Final = 0.2


class Progress(NamedTuple):
    """Progress of a worker; rank 0 shows it."""

    epoch: int
    num_epochs: int
    step: int
    num_steps: int
    loss: float
    samples_per_second: float
    consensus_distance: float
    """Consensus distance at the end of the last epoch; NaN before."""


class Trainer:
    """One worker's run.

    Args:
        settings: Settings of the training.
        rows: Rows of each row group of the training split.
        work: The worker's computation.
        algorithm: The algorithm that combines the workers.
        transport: The other workers; the meter measures its use.
        meter: The worker's time and bytes.
        files: Storage of records, models and checkpoints.
        on_progress: Called from time to time; None for workers without a progress display.
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
    ) -> None:
        self._settings = settings
        self._rows = tuple(rows)
        self._work = work
        self._algorithm = algorithm
        self._transport = transport
        self._meter = meter
        self._files = files
        self._on_progress = on_progress
        self._epoch = self._step = 0
        self._samples = 0
        self._sums = Sums()
        self._best: dict[str, Any] = {"epoch": -1, "val_loss": math.inf, "model": None}
        self._seconds_before = 0.0
        self._last_progress = 0.0
        self.history: list[dict[str, Any]] = []

    async def run(self, resume: Checkpoint | None = None) -> None:
        """Train to the end, from the beginning or from a checkpoint.

        Raises:
            ShardError: The dataset has too few row groups for the workers.
            DivergedError: The loss is no longer finite.
        """
        if resume is None:
            await self._algorithm.start()
        else:
            await self._take_up(resume)
        self._files.begin(self.history)
        while self._epoch < self._settings.epochs:
            await self._run_epoch()
        await self._algorithm.quiesce()
        await self._algorithm.close()

    async def _run_epoch(self) -> None:
        settings, transport = self._settings, self._transport
        plan = plan_epoch(
            self._rows,
            world_size=transport.world_size,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=self._epoch,
        )
        self._meter.restart()
        self._counts_before = self._algorithm.average_counts
        started = await self._steps(plan, transport.now())
        record = await self._finish_epoch(plan)
        record["seconds"] = transport.now() - started + self._seconds_before
        self._seconds_before = 0.0
        self._files.record(record)
        self.history.append(record)
        self._refuse_divergence(record)
        self._epoch, self._step = self._epoch + 1, 0
        await self._checkpoint()

    async def _steps(self, plan: EpochPlan, started: float) -> float:
        """Run the remaining steps of the epoch; returns the time at which it started or resumed."""
        settings, work, algorithm, meter = self._settings, self._work, self._algorithm, self._meter
        per_step = plan.samples.tolist()
        first_step = self._step
        work.begin_epoch(plan, epoch=self._epoch, first_step=first_step)
        groups = algorithm.optimizer.param_groups
        num_rows = sum(self._rows)
        counts_globally = self._counts_globally
        for step in range(first_step, plan.num_steps):
            meter.doing = "reading"
            num_samples = work.next_batch()
            meter.lap("read")
            meter.doing = "computing"
            if counts_globally:
                self._samples = await self._transport.count_samples(num_samples)
            else:
                self._samples += per_step[step]
            if not settings.schedule.is_constant:
                groups[0]["lr"] = learning_rate(settings, self._samples / num_rows)
            await algorithm.step(work.compute_gradient, num_samples)
            meter.lap("compute")
            self._step = step + 1
            self._tell(plan, started)
            if settings.checkpoint_steps and self._step % settings.checkpoint_steps == 0 < plan.num_steps - self._step:
                self._seconds_before += self._transport.now() - started
                await self._checkpoint()
                started = self._transport.now()
        return started

    @property
    def _counts_globally(self) -> bool:
        """Whether to count samples of all workers at run time: the rate depends on them, and their order varies."""
        return not (self._settings.schedule.is_constant or self._algorithm.synchronous)

    async def _see_all_samples(self) -> None:
        """Update the count of all workers' samples to their last steps; no worker takes a step meanwhile."""
        if self._counts_globally:
            self._samples = await self._transport.count_samples(0)

    def _tell(self, plan: EpochPlan, started: float) -> None:
        """Report progress at regular times and at the end of an epoch."""
        if self._on_progress is None:
            return
        now = time.monotonic()
        if now - self._last_progress < _SECONDS_BETWEEN_PROGRESS and self._step < plan.num_steps:
            return
        self._last_progress = now
        elapsed = self._transport.now() - started + self._seconds_before
        rows = sum(self._rows) * self._step / plan.num_steps
        self._on_progress(
            Progress(
                epoch=self._epoch + 1,
                num_epochs=self._settings.epochs,
                step=self._step,
                num_steps=plan.num_steps,
                loss=self._sums.plus(self._work.sums_so_far()).mean_loss,
                samples_per_second=rows / elapsed if elapsed else math.nan,
                consensus_distance=self.history[-1]["consensus_distance"] if self.history else math.nan,
            )
        )

    async def _finish_epoch(self, plan: EpochPlan) -> dict[str, Any]:
        """Validate the average model; returns the epoch's record."""
        algorithm, transport, meter = self._algorithm, self._transport, self._meter
        meter.doing = "at the end of the epoch"
        await algorithm.quiesce()
        await self._see_all_samples()
        sums = self._sums.plus(self._work.take_sums())
        self._sums = Sums()
        own = self._work.model.empty()
        await algorithm.current(own)
        mean = own.copy()
        await mean_over_workers(mean, transport)
        counts, before = algorithm.average_counts, self._counts_before
        record = {
            "epoch": self._epoch,
            "rank": transport.rank,
            "workers": transport.world_size,
            "steps": plan.num_steps,
            "samples": sums.samples,
            "samples_left_out": int(sum(self._rows[group] for group in plan.left_out)),
            "samples_seen_by_all": self._samples,
            "learning_rate": algorithm.optimizer.param_groups[0]["lr"],
            "bytes_sent": meter.bytes,
            "averages_begun": counts.begun - before.begun,
            "averages_received": counts.received - before.received,
            "averages_skipped": counts.skipped - before.skipped,
            "mixed_reads": counts.mixed_reads - before.mixed_reads,
            "staleness": {str(number): times for number, times in sorted(algorithm.counts.staleness.items())},
            "steps_not_finite": algorithm.counts.skipped,
            "wait_seconds": meter.wait_seconds(counts.wait_seconds - before.wait_seconds),
            "exchange_seconds": counts.exchange_seconds - before.exchange_seconds,
            "consensus_distance": await consensus_distance(own, mean, transport),
        }
        algorithm.counts.staleness.clear()
        totals = await reduce_sums(sums, transport)
        meter.lap("communicate")
        record |= {
            "samples_all_ranks": totals.samples,
            "train_loss": totals.mean_loss,
            "train_accuracy": totals.accuracy,
        }
        record |= await self._validate(own, mean)
        meter.lap("validate")
        record["seconds_by_kind"] = {kind: round(value, 6) for kind, value in meter.seconds.items()}
        await self._keep_best(record, mean)
        return record

    async def _validate(self, own: Vector, mean: Vector) -> dict[str, Any]:
        """Loss and accuracy of the average model; after the last epoch also those of the worker's own model."""
        transport = self._transport
        share = ValidationShare(transport.rank, transport.world_size)
        totals = await reduce_sums(await self._work.validate(mean, share), transport)
        found: dict[str, Any] = {"val_loss": totals.mean_loss, "val_accuracy": totals.accuracy}
        if self._epoch == self._settings.epochs - 1 and transport.world_size > 1:
            alone = await self._work.validate(own, ValidationShare(0, 1))
            found |= {"worker_val_loss": alone.mean_loss, "worker_val_accuracy": alone.accuracy}
        return found

    async def _keep_best(self, record: dict[str, Any], mean: Vector) -> None:
        if record["val_loss"] < self._best["val_loss"]:
            kept = torch.from_numpy(mean.copy()) if self._transport.rank == 0 else None
            self._best = {"epoch": self._epoch, "val_loss": record["val_loss"], "model": kept}
            self._files.keep_best(mean)
        record["best_epoch"] = self._best["epoch"]

    def _refuse_divergence(self, record: dict[str, Any]) -> None:
        if math.isfinite(record["val_loss"]):
            return
        raise DivergedError(
            f"the validation loss of epoch {record['epoch'] + 1} is {record['val_loss']}: training diverged. "
            f"Lower train.learning_rate (now {self._settings.effective_learning_rate:g} in effect)."
        )

    async def _checkpoint(self) -> None:
        """Write this worker's state while no worker averages; all workers together."""
        if not self._files.keeps_checkpoints:
            return
        self._meter.doing = "writing a checkpoint"
        await self._algorithm.quiesce()
        await self._see_all_samples()
        self._sums = self._sums.plus(self._work.take_sums())
        published, current = self._work.model.empty(), self._work.model.empty()
        await self._algorithm.published(published)
        await self._algorithm.current(current)
        self._files.write_checkpoint(
            (self._epoch, self._step),
            {
                "published": torch.from_numpy(published),
                "current": torch.from_numpy(current),
                "optimizer": self._algorithm.optimizer.state_dict(),
                "algorithm": self._algorithm.state(),
                "work": self._work.state(),
                "samples": self._samples,
                "skipped": self._algorithm.counts.skipped,
                "sums": self._sums._asdict(),
                "seconds_before": self._seconds_before,
                "best": self._best,
                "history": self.history,
            },
        )
        # After the barrier all workers have written, and no vector was averaged meanwhile.
        await self._transport.barrier()
        self._files.complete_checkpoint((self._epoch, self._step))
        self._meter.lap("checkpoint")

    async def _take_up(self, resume: Checkpoint) -> None:
        """Resume from a checkpoint: exactly, or from the average model with another number of workers."""
        model, algorithm, transport = self._work.model, self._algorithm, self._transport
        content = resume.load(transport.rank if resume.world_size == transport.world_size else 0)
        self._epoch = resume.epoch
        if content["best"]["model"] is not None:
            # The model's folder may hold a model of later epochs than the checkpoint; these epochs run again.
            self._files.keep_best(content["best"]["model"].numpy())
        self._samples, self._best, self.history = content["samples"], content["best"], content["history"]
        if transport.rank == 0 and self._counts_globally:
            # Load before any worker takes a step: start() waits for all workers.
            await transport.count_samples(self._samples)
        if resume.world_size == transport.world_size:
            model.write(content["published"].numpy())
            await algorithm.start()
            algorithm.load_state(content["algorithm"])
            self._work.load_state(content["work"])
            algorithm.optimizer.load_state_dict(content["optimizer"])
            algorithm.counts.skipped = content["skipped"]
            self._step = resume.step
            self._sums = Sums(**content["sums"])
            self._seconds_before = content["seconds_before"]
        else:
            # The rest of the epoch cannot be divided anew, so the epoch restarts, and momentum and moments with it.
            parts = [resume.load(rank) for rank in range(resume.world_size)]
            models = [part["current"].numpy() for part in parts]
            model.write(np.mean(models, axis=0, dtype=np.float64).astype(models[0].dtype))
            await algorithm.start()
            # A rank takes the counters of the rank with its number; an additional rank starts at 0.
            own: dict[str, Any] = (
                parts[transport.rank] if transport.rank < len(parts) else {"history": [], "skipped": 0}
            )
            self.history, algorithm.counts.skipped = own["history"], own["skipped"]


async def consensus_distance(own: Vector, mean: Vector, transport: MeteredTransport) -> float:
    """sqrt(1/m sum_i |x_i - mean|^2), the distance of the workers from consensus (Kong et al. 2021, equation 2).

    The thesis' Gamma_t (section 2.3) is m times its square.
    """
    square = np.array([np.square(own.astype(np.float64) - mean).sum()])
    await transport.all_reduce_sum(square)
    return float(np.sqrt(square[0] / transport.world_size))
