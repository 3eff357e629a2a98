"""Progress of a worker, reported from time to time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from training.loop.account import Account
from training.loop.metering import Meter

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
        account: Account,
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
                samples_per_second=self._num_rows * step / num_steps / elapsed if elapsed else math.nan,
                consensus_distance=self.distance,
            )
        )
