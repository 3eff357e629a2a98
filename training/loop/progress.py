"""What one worker did in an epoch: its record, and its progress now and then."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from training.algorithms.base import Algorithm, Counters
from training.loop.metering import Meter
from training.workloads.gradients import Sums
from training.workloads.work import Work


class EpochStats:
    """The account of a worker's current epoch."""

    def __init__(self, work: Work, algorithm: Algorithm, meter: Meter) -> None:
        self._work = work
        self._algorithm = algorithm
        self._meter = meter
        self._before: Counters = {}
        self._recorded: Counters | None = None
        self._earlier: Counters = {}
        self._sums = Sums()
        self.steps = 0
        self.own: Counters = {}
        """What the training loop itself counted since the start."""

    def begin(self) -> None:
        """Begin an epoch now."""
        self._meter.restart()
        # A thread may have finished averages since the record, and partners before it: they belong to this epoch.
        self._before, self._recorded = self._recorded or self._counters(), None
        self._earlier = {}
        self._sums = Sums()
        self.steps = 0

    @property
    def sums(self) -> Sums:
        """Sums over the batches of the epoch so far."""
        return self._sums.combine(self._work.running_sums())

    def record(self) -> dict[str, Any]:
        """What the worker did in the epoch, as a record of `training.loop.records`."""
        meter, self._recorded = self._meter, self._counters()
        sums, counted = self._sums.combine(self._work.pop_sums()), self._counted(self._recorded)
        kinds = {kind: round(value, 6) for kind, value in meter.seconds.items()}
        return {
            "steps": self.steps,
            "samples": sums.samples,
            "sums": {"loss": sums.loss, "weight": sums.weight, "correct": sums.correct},
            "bytes_sent": meter.bytes,
            "counted": list(counted),
            **counted,
            "wait_seconds": kinds.get("wait", 0.0),
            "seconds": meter.total_seconds,
            "seconds_by_kind": kinds,
            "learning_rate": self._algorithm.optimizer.param_groups[0]["lr"],
        }

    def _counters(self) -> Counters:
        return {**self._algorithm.counters(), **self.own}

    def _counted(self, now: Counters) -> Counters:
        """What the algorithm counted in the epoch; histograms with their numbers as text, as in JSON."""
        found = {name: value - self._before[name] for name, value in now.items()}
        # An earlier part may have counted what this one does not, as checkpoints.
        found |= {
            name: found[name] + value if name in found else value
            for name, value in self._earlier.items()
        }
        return {
            name: {str(number): times for number, times in sorted(value.items())}
            if isinstance(value, Counter)
            else value
            for name, value in found.items()
        }

    def state(self) -> dict[str, Any]:
        """The part of the epoch so far, as plain values."""
        self._sums = self._sums.combine(self._work.pop_sums())
        return {
            "steps": self.steps,
            "sums": self._sums._asdict(),
            "seconds": dict(self._meter.seconds),
            "bytes": self._meter.bytes,
            "counters": self._counted(self._counters()),
        }

    def load_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue, after `begin`, the parts of one worker, or of several that are gone."""
        for state in states:
            self.steps += state["steps"]
            self._sums = self._sums.combine(Sums(**state["sums"]))
            self._meter.bytes += state["bytes"]
            for name, value in state["counters"].items():
                is_histogram = isinstance(value, dict)
                count = (
                    Counter({int(number): times for number, times in value.items()})
                    if is_histogram
                    else value
                )
                self._earlier[name] = (
                    count + self._earlier[name] if name in self._earlier else count
                )
        if len(states) == 1:
            self._meter.seconds.update(states[0]["seconds"])


_SECONDS_BETWEEN: Final = 0.2


class Progress(NamedTuple):
    """Progress of a worker; rank 0 shows it."""

    epoch: int
    num_epochs: int
    step: int
    num_steps: int
    loss: float
    samples_per_second: float
    consensus_distance: float
    """Consensus distance when this worker last validated; NaN before."""


class ProgressReport:
    """Reports progress at regular times and at the end of an epoch.

    `on_progress`: called from time to time; None for workers without a progress display.
    """

    def __init__(
        self,
        on_progress: Callable[[Progress], None] | None,
        account: EpochStats,
        meter: Meter,
        num_epochs: int,
        num_rows: int,
    ) -> None:
        self._on_progress = on_progress
        self._account, self._meter = account, meter
        self._num_epochs, self._num_rows = num_epochs, num_rows
        self._last = 0.0
        self.distance = math.nan
        """Consensus distance when this worker last validated."""

    def tell(self, epoch: int, step: int, num_steps: int) -> None:
        """Report, if it is time."""
        if self._on_progress is None or not step:
            return
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN and step < num_steps:
            return
        self._last, elapsed = now, self._meter.total_seconds
        self._on_progress(
            Progress(
                epoch=epoch + 1,
                num_epochs=self._num_epochs,
                step=step,
                num_steps=num_steps,
                loss=self._account.sums.mean_loss,
                samples_per_second=self._num_rows * step / num_steps / elapsed
                if elapsed
                else math.nan,
                consensus_distance=self.distance,
            )
        )
