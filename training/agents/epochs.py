"""The ends of epochs: validation beside the cycles, records, the best model, checkpoints."""

from __future__ import annotations

import json
import math
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from training.agents.driver import Cycle, Driver
from training.agents.ledger import Ledger
from training.errors import DivergedError
from training.flat_model import ModelState
from training.loop.checkpoints import Checkpoint
from training.loop.records import DiskFiles, Record, merged
from training.loop.schedule import learning_rate
from training.loop.summary import utilisation
from training.settings import TrainSettings
from training.transports.basics import run_now
from training.workloads.work import ValidationShare, Work

#: Sums over the cycles of an epoch in its record.
_OF_CYCLES = ("seconds", "reduce_seconds", "prepare_seconds", "broadcast_seconds", "bytes_reduced", "bytes_broadcast")


class _Snapshot(NamedTuple):
    """The driver at the end of an epoch, or within one."""

    position: tuple[int, int]
    state: ModelState
    records: list[Record]
    """Of each partition; empty within an epoch."""
    content: dict[str, Any]
    """Of the checkpoint."""


class EpochEnds:
    """The results of a run, all written by the driver.

    Args:
        settings: Settings of the training.
        work: Validates.
        files: Files of each partition.
        log: File with a line for each cycle.
    """

    def __init__(self, settings: TrainSettings, work: Work, files: list[DiskFiles], log: Path) -> None:
        self._settings, self._work, self._files, self._log = settings, work, files, log
        self._buffers = work.buffers()
        self._histories: list[list[Record]] = [[] for _ in files]
        self._best: dict[str, Any] = {"val_loss": math.inf, "model": None, "buffers": None}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="validation")
        self._pending: Future[None] | None = None
        self._cycles: Counter[str] = Counter()
        self._checkpointed = 0
        self.distance = math.nan

    def begin(self, resume: Checkpoint | None, ledger: Ledger, driver: Driver) -> None:
        """Begin a run, or continue from a checkpoint."""
        if resume is not None:
            content = resume.load(0)
            ledger.load_state(content["ledger"])
            driver.load_state(content["joint"], content["cycle"])
            self._best, self._cycles = content["best"], Counter(content["cycles"])
            found, count = content["histories"], len(self._files)
            # The records of partitions that are gone are kept in the totals.
            found = found if len(found) == count else merged(found)
            self._histories = [*found[:count], *([] for _ in range(count - len(found)))]
            self._checkpointed = ledger.used
        position = (resume.epoch, resume.step) if resume else (0, 0)
        for files, history in zip(self._files, self._histories, strict=True):
            files.begin(history, position, resume)
        # Cycles after the checkpoint are made again.
        before = self._log.read_text(encoding="utf-8").splitlines(keepends=True) if self._log.exists() else []
        self._log.write_text("".join(before[: driver.number]), encoding="utf-8")

    def after(self, cycle: Cycle, ledger: Ledger, driver: Driver, *, num_lost: int) -> None:
        """Log a cycle; end the epoch if its samples are used, or write a checkpoint within it.

        Raises:
            DivergedError: The validation loss of an earlier epoch is not finite.
        """
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"epoch": ledger.epoch, **cycle._asdict()}) + "\n")
        self._cycles.update({"all_cycles": 1, **{f"cycle_{name}": getattr(cycle, name) for name in _OF_CYCLES}})
        every = self._settings.checkpoint_steps
        # The last epoch ends with the run, when the joint model contains the last steps.
        if ledger.epoch_is_over and not ledger.is_done:
            self.end(ledger, driver, num_lost=num_lost)
        elif every and ledger.used - self._checkpointed >= every * self._settings.batch_size * len(self._files):
            self._submit(self._snapshot(ledger, driver, []))

    def end(self, ledger: Ledger, driver: Driver, *, num_lost: int) -> None:
        """End an epoch: its records, and the validation of the joint model beside the next cycles."""
        epoch = ledger.epoch
        records = ledger.records()
        self.distance = math.sqrt(ledger.mean_square)
        facts = {
            "train_rows": ledger.rows,
            "samples_seen_by_all": ledger.used,
            "consensus_distance": self.distance,
            "agents_lost": num_lost,
            "utilisation": utilisation(records),
            **self._cycles,
        }
        self._cycles.clear()
        rate = learning_rate(self._settings, epoch + 1)
        for rank, record in enumerate(records):
            who = {"epoch": epoch, "rank": rank, "workers": self._settings.workers, "learning_rate": rate}
            records[rank] = who | record | ({} if rank else facts)
        self._submit(self._snapshot(ledger, driver, records))

    def stop(self) -> None:
        """Wait for what is under way, so that nothing is written later."""
        self._thread.shutdown()

    def close(self) -> None:
        """Wait for the last validation, and keep the best model.

        Raises:
            DivergedError: Its loss is not finite.
        """
        if self._pending is not None:
            self._pending.result()
        self._files[0].keep_best(ModelState(self._best["model"].numpy(), self._best["buffers"].numpy()))
        for files in self._files:
            files.close()

    def _snapshot(self, ledger: Ledger, driver: Driver, records: list[Record]) -> _Snapshot:
        self._checkpointed = ledger.used
        position = (ledger.epoch, ledger.used - ledger.epoch * ledger.rows)
        content = {
            "joint": driver.state(),
            "cycle": driver.number,
            "ledger": ledger.state(),
            "cycles": dict(self._cycles),
        }
        buffers = ledger.mean_buffers()
        state = ModelState(driver.model, self._buffers if buffers is None else buffers)
        return _Snapshot(position, state, records, content)

    def _submit(self, snapshot: _Snapshot) -> None:
        if self._pending is not None:
            self._pending.result()
        self._pending = self._thread.submit(self._write, snapshot)

    def _write(self, snapshot: _Snapshot) -> None:
        """Validate, and write records and checkpoint; in a thread."""
        if snapshot.records:
            self._validate(snapshot)
        content = {**snapshot.content, "best": self._best, "histories": self._histories}
        checkpoints = self._files[0].checkpoints
        checkpoints.write_rank(snapshot.position, 1, 0, content)
        checkpoints.complete(snapshot.position, 1)

    def _validate(self, snapshot: _Snapshot) -> None:
        sums = run_now(self._work.validate(snapshot.state, ValidationShare(0, 1)))
        snapshot.records[0] |= {"val_loss": sums.mean_loss, "val_accuracy": sums.accuracy}
        for files, history, record in zip(self._files, self._histories, snapshot.records, strict=True):
            history.append(record)
            files.record(record)
        if not math.isfinite(sums.mean_loss):
            raise DivergedError(
                f"the validation loss of epoch {snapshot.records[0]['epoch'] + 1} is {sums.mean_loss}: training "
                f"diverged. Lower train.learning_rate (now {self._settings.effective_learning_rate:g} in effect)."
            )
        if sums.mean_loss < self._best["val_loss"]:
            model, buffers = map(torch.from_numpy, snapshot.state)
            self._best = {"val_loss": sums.mean_loss, "model": model, "buffers": buffers}
