"""The best settings of a grid search in a training.

Only networks that take their settings from there depend on this code.
"""

from __future__ import annotations

from collections.abc import Callable

from models.networks.network_settings import NetworkSettings
from pipeline.runs.version import Version
from training.gridsearch.settings import Trial
from training.settings import TrainSettings


def with_best_settings(
    model: NetworkSettings, settings: TrainSettings, searched: Version, say: Callable[[str], None]
) -> tuple[NetworkSettings, TrainSettings]:
    """Return the settings of a network and of its training with the best ones of a grid search.

    The search stores its choice in `best.json`. Layers, batch size, learning rate and epochs come
    from there; all other settings stay as they are given.

    Args:
        model: The settings of the network in the config.
        settings: The settings of the training in the config.
        searched: The output of the stage `gridsearch`.
        say: Called with one line about the settings that were found.
    """
    best = Trial.load(searched.folder / "best.json")
    model, settings = best.applied_to(model, settings)
    layers = "-".join(map(str, best.hidden))
    say(
        f"from the grid search: layers {layers}, learning rate {best.learning_rate:g}, "
        f"{best.epochs} epochs, {settings.batch_size} events a step and worker"
    )
    return model, settings
