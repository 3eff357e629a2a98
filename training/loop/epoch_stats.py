"""Statistics of a worker's epoch for its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from training.algorithms.base import Algorithm, Counters
from training.errors import TrainingError
from training.loop.metering import Meter
from training.workloads.gradients import Sums
from training.workloads.work import Work


class EpochStatsState(TypedDict):
    """The statistics of a part of an epoch, in a checkpoint."""

    steps: int
    sums: dict[str, Any]
    """Fields of `Sums` over the batches of the part."""
    seconds: dict[str, float]
    """Time of each kind of work [s]."""
    bytes: int
    """Number of bytes sent."""
    counters: dict[str, Any]
    """Counts by name; a histogram is a dictionary from bins, as text, to counts."""


class EpochStats:
    """Statistics of a worker's current epoch.

    The counters of the method, the loss and the loop run from the start of the worker. So an epoch has the
    differences to their values at its begin. If the worker resumed within the epoch, the counts of
    the part before are added.
    """

    def __init__(self, work: Work, algorithm: Algorithm, meter: Meter) -> None:
        self._work = work
        self._algorithm = algorithm
        self._meter = meter
        self._counters_at_begin: Counters = {}
        """Counters at the begin of the epoch."""
        self._counters_at_record: Counters | None = None
        """Counters when `record` was called, if `begin` was not called since; else None."""
        #: Counters of the part of the epoch before a restart.
        self._counters_before_resume: Counters = {}
        self._sums = Sums()
        """Sums over the batches of the epoch that the work no longer has."""
        self.steps = 0
        """Number of this worker's steps in the epoch."""
        self.loop_counters: Counters = {}
        """Counters of the training loop itself since the start."""

    def begin(self) -> None:
        """Begin an epoch now: reset all statistics.

        If the epoch before has a record, the counts begin where this record ended.
        """
        self._meter.restart()
        # Averages that a thread or a partner has finished since the record belong to this epoch.
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
        """Return the worker's epoch as a record of `training.loop.records`.

        This resets the sums over its batches; `begin` resets the rest.
        """
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
        """Return the part of the epoch so far, as plain values for a checkpoint."""
        # The sums of the batches move from the work to this object, so that none is counted twice.
        self._sums = self._sums.combine(self._work.pop_sums())
        return {
            "steps": self.steps,
            "sums": self._sums._asdict(),
            "seconds": dict(self._meter.seconds),
            "bytes": self._meter.bytes,
            "counters": self._count_since_begin(self._read_counters()),
        }

    def load_states(self, states: Sequence[EpochStatsState]) -> None:
        """Add the parts of the epoch from a checkpoint; called after `begin`.

        `states`: that of this worker, or of several whose work it takes over; empty for a new run.
        Times are taken over from a single state only.
        """
        for state in states:
            self.steps += state["steps"]
            self._sums = self._sums.combine(Sums(**state["sums"]))
            self._meter.bytes += state["bytes"]
            for name, count in state["counters"].items():
                _add_count(self._counters_before_resume, name, _from_json(count))
        if len(states) == 1:
            self._meter.seconds.update(states[0]["seconds"])

    def _read_counters(self) -> Counters:
        counters: Counters = {}
        for name, count in self._algorithm.counters().items():
            counters[name] = _without_numpy(count)
            if not isinstance(counters[name], int | float | Counter):
                method = type(self._algorithm).__name__
                raise TrainingError(
                    f"{method}.counters gives '{name}' an object of the type "
                    f"{type(count).__name__}. A counter is a number, or a `Counter` of numbers"
                )
        return {**counters, **self._work.counters(), **self.loop_counters}

    def _count_since_begin(self, counters: Counters) -> Counters:
        """Return the counts of the epoch from the present counters.

        A histogram becomes a dictionary with its bins as text, as JSON needs them.
        """
        counts: Counters = {}
        for name, count in counters.items():
            # A counter that came after the begin counts from 0.
            if name in self._counters_at_begin:
                count = count - self._counters_at_begin[name]  # noqa: PLW2901 - the count since then
            counts[name] = count
        # The part before a restart may have counters that this part lacks, such as checkpoints.
        for name, count in self._counters_before_resume.items():
            _add_count(counts, name, count)
        for name, count in counts.items():
            if isinstance(count, Counter):
                counts[name] = {str(bin_value): times for bin_value, times in sorted(count.items())}
        return counts


def _without_numpy(count: Any) -> Any:
    """Convert numbers of numpy, also those in a histogram, to those of Python, as JSON needs them.

    A method of a plugin may count with them.
    """
    if isinstance(count, Counter):
        histogram: Counter[Any] = Counter()
        for bin_value, times in count.items():
            histogram[_without_numpy(bin_value)] = _without_numpy(times)
        return histogram
    return count.item() if isinstance(count, np.generic) else count


def _from_json(count: Any) -> Any:
    """Convert a count from JSON to that of an algorithm, whose histograms have numbers as bins."""
    if isinstance(count, dict):
        return Counter({int(bin_text): times for bin_text, times in count.items()})
    return count


def _add_count(counts: Counters, name: str, count: Any) -> None:
    """Add a number or a histogram to the count of a name in `counts`."""
    counts[name] = counts[name] + count if name in counts else count
