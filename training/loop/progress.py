"""Statistics of a worker's epoch for its record, and its progress for the terminal."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypedDict

from training.algorithms.base import Algorithm, Counters
from training.loop.metering import Meter
from training.workloads.gradients import Sums
from training.workloads.work import Work


class EpochStatsState(TypedDict):
    """The statistics of a part of an epoch, in a checkpoint."""

    steps: int
    sums: dict[str, Any]
    seconds: dict[str, float]
    bytes: int
    counters: dict[str, Any]


class EpochStats:
    """Statistics of a worker's current epoch."""

    def __init__(self, work: Work, algorithm: Algorithm, meter: Meter) -> None:
        self._work = work
        self._algorithm = algorithm
        self._meter = meter
        self._counters_at_begin: Counters = {}
        self._counters_at_record: Counters | None = None
        #: Counters of the part of the epoch before a restart.
        self._counters_before_resume: Counters = {}
        self._sums = Sums()
        self.steps = 0
        self.loop_counters: Counters = {}
        """Counters of the training loop itself since the start."""

    def begin(self) -> None:
        """Begin an epoch now."""
        self._meter.restart()
        # A thread may have finished averages since the record, and partners before it. They belong
        # to this epoch.
        if self._counters_at_record is None:
            self._counters_at_begin = self._read_counters()
        else:
            self._counters_at_begin = self._counters_at_record
        self._counters_at_record = None
        self._counters_before_resume = {}
        self._sums = Sums()
        self.steps = 0

    @property
    def sums(self) -> Sums:
        """Sums over the batches of the epoch so far."""
        return self._sums.combine(self._work.running_sums())

    def record(self) -> dict[str, Any]:
        """The worker's epoch, as a record of `training.loop.records`."""
        meter = self._meter
        self._counters_at_record = self._read_counters()
        counters = self._count_since_begin(self._counters_at_record)
        sums = self._sums.combine(self._work.pop_sums())
        seconds_by_kind = {
            category: round(seconds, 6) for category, seconds in meter.seconds.items()
        }
        return {
            "steps": self.steps,
            "samples": sums.samples,
            "sums": {"loss": sums.loss, "weight": sums.weight, "correct": sums.correct},
            "bytes_sent": meter.bytes,
            "counted": list(counters),
            **counters,
            "wait_seconds": seconds_by_kind.get("wait", 0.0),
            "seconds": meter.total_seconds,
            "seconds_by_kind": seconds_by_kind,
            "learning_rate": self._algorithm.optimizer.param_groups[0]["lr"],
        }

    def state(self) -> EpochStatsState:
        """The part of the epoch so far, as plain values."""
        self._sums = self._sums.combine(self._work.pop_sums())
        return {
            "steps": self.steps,
            "sums": self._sums._asdict(),
            "seconds": dict(self._meter.seconds),
            "bytes": self._meter.bytes,
            "counters": self._count_since_begin(self._read_counters()),
        }

    def load_states(self, states: Sequence[EpochStatsState]) -> None:
        """Continue, after `begin`, the parts of one worker, or of several that are gone."""
        for state in states:
            self.steps += state["steps"]
            self._sums = self._sums.combine(Sums(**state["sums"]))
            self._meter.bytes += state["bytes"]
            for name, count in state["counters"].items():
                _add_count(self._counters_before_resume, name, _from_json(count))
        if len(states) == 1:
            self._meter.seconds.update(states[0]["seconds"])

    def _read_counters(self) -> Counters:
        return {**self._algorithm.counters(), **self.loop_counters}

    def _count_since_begin(self, counters: Counters) -> Counters:
        """The counts of the epoch; histograms with their bins as text, as in JSON."""
        counts: Counters = {}
        for name, count in counters.items():
            counts[name] = count - self._counters_at_begin[name]
        # The part before a restart may have counters that this part lacks, such as checkpoints.
        for name, count in self._counters_before_resume.items():
            _add_count(counts, name, count)
        for name, count in counts.items():
            if isinstance(count, Counter):
                counts[name] = {str(bin_value): times for bin_value, times in sorted(count.items())}
        return counts


def _from_json(count: Any) -> Any:
    """A count as the algorithm has it: a histogram has numbers as bins."""
    if isinstance(count, dict):
        return Counter({int(bin_text): times for bin_text, times in count.items()})
    return count


def _add_count(counts: Counters, name: str, count: Any) -> None:
    counts[name] = counts[name] + count if name in counts else count


_SECONDS_BETWEEN_REPORTS: Final = 0.2


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
        stats: EpochStats,
        meter: Meter,
        num_epochs: int,
        num_rows: int,
    ) -> None:
        self._on_progress = on_progress
        self._stats, self._meter = stats, meter
        self._num_epochs, self._num_rows = num_epochs, num_rows
        self._last_report = 0.0
        self.consensus_distance = math.nan
        """Consensus distance when this worker last validated."""

    def report(self, epoch: int, step: int, num_steps: int) -> None:
        """Report the progress, if it is time."""
        if self._on_progress is None or not step:
            return
        now = time.monotonic()
        is_early = now - self._last_report < _SECONDS_BETWEEN_REPORTS
        if is_early and step < num_steps:
            return
        self._last_report = now
        seconds = self._meter.total_seconds
        samples = self._num_rows * step / num_steps
        progress = Progress(
            epoch=epoch + 1,
            num_epochs=self._num_epochs,
            step=step,
            num_steps=num_steps,
            loss=self._stats.sums.mean_loss,
            samples_per_second=samples / seconds if seconds else math.nan,
            consensus_distance=self.consensus_distance,
        )
        self._on_progress(progress)
