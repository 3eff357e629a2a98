"""Progress of a worker for the terminal. No torch: launchers read it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from training.loop.epoch_stats import EpochStats
    from training.loop.metering import Meter

#: Shortest time between two reports [s].
_SECONDS_BETWEEN_REPORTS: Final = 0.2


class Progress(NamedTuple):
    """Progress of a worker; rank 0 shows it."""

    epoch: int
    """Number of the epoch, from 1."""
    num_epochs: int
    step: int
    """Number of finished steps of the epoch."""
    num_steps: int
    loss: float
    """Mean training loss of this worker over the epoch so far."""
    samples_per_second: float
    """Samples of all workers."""
    consensus_distance: float
    """Consensus distance when this worker last validated; NaN before."""


class ProgressReport:
    """Reports progress at regular times and at the end of an epoch.

    `on_progress`: called from time to time; None for workers without a progress display. `stats`:
    has the loss. `meter`: has the time. `num_rows`: rows of an epoch of all workers.
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
        """Report the progress, unless the last report was less than 0.2 s ago.

        The end of an epoch is always reported.

        `epoch`: from 0. `step`: number of finished steps of `num_steps` of the epoch.
        """
        if self._on_progress is None or not step:
            return
        now = time.monotonic()
        is_early = now - self._last_report < _SECONDS_BETWEEN_REPORTS
        if is_early and step < num_steps:
            return
        self._last_report = now
        seconds = self._meter.total_seconds
        # All workers together have trained on this share of the rows.
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
