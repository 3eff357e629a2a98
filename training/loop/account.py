"""What one worker did in an epoch: its steps, events, times, bytes and averages, as a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.algorithms.base import Algorithm
from training.loop.metering import Meter
from training.transports.transport import AverageCounts
from training.workloads.sums import Sums
from training.workloads.work import Work


class Account:
    """The account of a worker's current epoch.

    Args:
        work: The worker's computation.
        algorithm: The algorithm that counts averages and skipped steps.
        meter: The worker's time and bytes.
    """

    def __init__(self, work: Work, algorithm: Algorithm, meter: Meter) -> None:
        self._work = work
        self._algorithm = algorithm
        self._meter = meter
        self._before = AverageCounts()
        self._recorded: AverageCounts | None = None
        self._sums = Sums()
        self.steps = 0

    def begin(self) -> None:
        """Begin an epoch now."""
        self._meter.restart()
        # A thread may have finished averages since the record, and partners before it: they belong to this epoch.
        self._before, self._recorded = self._recorded or self._algorithm.average_counts, None
        self._algorithm.counts.staleness.clear()
        self._sums = Sums()
        self.steps = 0

    @property
    def sums(self) -> Sums:
        """Sums over the batches of the epoch so far."""
        return self._sums.plus(self._work.sums_so_far())

    def record(self) -> dict[str, Any]:
        """The record of the epoch."""
        meter, counts, before = self._meter, self._algorithm.average_counts, self._before
        self._recorded = counts
        sums = self._sums.plus(self._work.take_sums())
        kinds = {kind: round(seconds, 6) for kind, seconds in meter.seconds.items()}
        return {
            "steps": self.steps,
            "samples": sums.samples,
            "sums": {"loss": sums.loss, "weight": sums.weight, "correct": sums.correct},
            "learning_rate": self._algorithm.optimizer.param_groups[0]["lr"],
            "bytes_sent": meter.bytes,
            "averages_begun": counts.begun - before.begun,
            "averages_received": counts.received - before.received,
            "averages_skipped": counts.skipped - before.skipped,
            "averages_refused": counts.refused - before.refused,
            "averages_lost": counts.lost - before.lost,
            "mixed_reads": counts.mixed_reads - before.mixed_reads,
            "staleness": {str(number): times for number, times in sorted(self._algorithm.counts.staleness.items())},
            "steps_not_finite": self._algorithm.counts.skipped,
            "wait_seconds": kinds.get("wait", 0.0),
            "exchange_seconds": counts.exchange_seconds - before.exchange_seconds,
            "hidden_seconds": counts.hidden_seconds - before.hidden_seconds,
            "seconds": meter.total_seconds,
            "seconds_by_kind": kinds,
        }

    def state(self) -> dict[str, Any]:
        """The part of the epoch so far, as plain values."""
        self._sums = self._sums.plus(self._work.take_sums())
        return {
            "steps": self.steps,
            "sums": self._sums._asdict(),
            "seconds": dict(self._meter.seconds),
            "bytes": self._meter.bytes,
        }

    def load_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue, after `begin`, the parts of one worker, or of several that are gone."""
        for state in states:
            self.steps += state["steps"]
            self._sums = self._sums.plus(Sums(**state["sums"]))
            self._meter.bytes += state["bytes"]
        if len(states) == 1:
            self._meter.seconds.update(states[0]["seconds"])
