"""The learning rate as a function of the global clock: samples seen by all workers, in epochs."""

from __future__ import annotations

import math

from training.settings import TrainSettings


def learning_rate(settings: TrainSettings, epochs_done: float) -> float:
    """The rate of the base optimiser once so many epochs of samples were seen by all workers together.

    Warm-up rises linearly (Goyal et al. 2017, section 2.2: from the rate of one worker where the linear rule scales it,
    here else from 0). The clock counts the samples of the step too, so that the rate is never 0.

    Args:
        settings: The rate, its schedule and the number of epochs.
        epochs_done: Samples so far over samples in the training split, the present step's included.

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
        return full * schedule.factor ** sum(epochs_done > milestone for milestone in schedule.milestones)
    if schedule.decay == "cosine":
        length = max(settings.epochs - schedule.warmup_epochs, 1e-12)
        progress = min((epochs_done - schedule.warmup_epochs) / length, 1.0)
        low = schedule.final_fraction
        return full * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)
    return full
