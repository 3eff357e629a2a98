"""The learning rate as a function of the samples seen by all workers, counted in epochs."""

from __future__ import annotations

import math

from training.settings import TrainSettings


class SampleClock:
    """Counts the samples of all workers in epochs, each as long as the samples that it uses."""

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self._epoch = 0
        self._budget = 1
        self._offset = 0

    def begin(self, epoch: int, budget: int, *, done: int = 0, counted: int = 0) -> None:
        """Begin an epoch."""
        self._epoch, self._budget, self._offset = epoch, budget, done - counted

    def learning_rate(self, counted: int) -> float:
        """The rate after as many samples as the workers' counter shows."""
        return learning_rate(self._settings, self._epoch + (counted + self._offset) / self._budget)


def learning_rate(settings: TrainSettings, epochs_done: float) -> float:
    """The learning rate of the base optimiser after `epochs_done` epochs of samples, over all workers together.

    The warm-up is linear. It starts at the rate of one worker if the linear rule scales the rate (Goyal et al. 2017,
    section 2.2), else at 0. `epochs_done` includes the samples of the current step, so that the rate is never 0.

    Examples:
        >>> from training.settings import ScheduleSettings
        >>> settings = TrainSettings(learning_rate=1.0, epochs=10, schedule=ScheduleSettings(warmup_epochs=2))
        >>> [learning_rate(settings, done) for done in (0.5, 1.0, 5.0)]
        [0.25, 0.5, 1.0]
    """
    schedule = settings.schedule
    full = settings.effective_learning_rate
    if epochs_done < schedule.warmup_epochs:
        start = settings.learning_rate if settings.rate_scale > 1 else 0.0
        return start + (full - start) * epochs_done / schedule.warmup_epochs
    if schedule.decay == "step":
        return full * schedule.factor ** sum(
            epochs_done > milestone for milestone in schedule.milestones
        )
    if schedule.decay == "cosine":
        length = max(settings.epochs - schedule.warmup_epochs, 1e-12)
        progress = min((epochs_done - schedule.warmup_epochs) / length, 1.0)
        low = schedule.final_fraction
        return full * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)
    return full
