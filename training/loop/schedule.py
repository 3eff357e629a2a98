"""The learning rate as a function of the samples seen by all workers, counted in epochs."""

from __future__ import annotations

import math

from training.settings import TrainSettings


class SampleClock:
    """Converts the workers' counter of samples to epochs, and epochs to the learning rate.

    The counter starts at 0 when a run starts or resumes, so a resumed epoch begins below 0.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self._epoch = 0
        """The epoch that began last."""
        self._num_rows = 1
        """Number of rows of an epoch."""
        self._counter_at_epoch = 0
        """The counter at the begin of that epoch."""

    def begin_epoch(
        self, epoch: int, num_rows: int, *, num_trained: int = 0, counter: int = 0
    ) -> None:
        """Begin an epoch of `num_rows`, of which `num_trained` are done, at this counter."""
        self._epoch, self._num_rows = epoch, num_rows
        self._counter_at_epoch = counter - num_trained

    def learning_rate(self, counter: int) -> float:
        """Return the rate after as many samples of all workers as the counter shows.

        The counter may be beyond the end of the epoch that began last.
        """
        epoch_fraction = (counter - self._counter_at_epoch) / self._num_rows
        return learning_rate(self._settings, self._epoch + epoch_fraction)


def learning_rate(settings: TrainSettings, num_epochs: float) -> float:
    """Return the learning rate of the optimiser after some epochs.

    The rate rises linearly in the warm-up, to the full rate. Then it stays, falls by a factor at
    each milestone (`step`), or follows half a cosine down to a fraction of the full rate at the end
    of the run (`cosine`). The warm-up starts at the rate of one worker if the rate is scaled with
    the number of workers (Goyal et al. 2017, section 2.2), else at 0.

    `num_epochs`: samples of all workers, divided by the rows of an epoch. It includes the samples
    of the current step, so that the rate is never 0.

    Examples:
        >>> from training.schedule_settings import ScheduleSettings
        >>> schedule = ScheduleSettings(warmup_epochs=2)
        >>> settings = TrainSettings(learning_rate=1.0, epochs=10, schedule=schedule)
        >>> [learning_rate(settings, num_epochs) for num_epochs in (0.5, 1.0, 5.0)]
        [0.25, 0.5, 1.0]
    """
    schedule = settings.schedule
    full_rate = settings.effective_learning_rate
    if num_epochs < schedule.warmup_epochs:
        start_rate = settings.learning_rate if settings.rate_scale > 1 else 0.0
        return start_rate + (full_rate - start_rate) * num_epochs / schedule.warmup_epochs
    if schedule.decay == "step":
        num_drops = sum(num_epochs > milestone for milestone in schedule.milestones)
        return full_rate * schedule.factor**num_drops
    if schedule.decay == "cosine":
        # The settings refuse a warm-up that takes the whole run.
        decay_epochs = settings.epochs - schedule.warmup_epochs
        progress = min((num_epochs - schedule.warmup_epochs) / decay_epochs, 1.0)
        final = schedule.final_fraction
        return full_rate * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)
    return full_rate
