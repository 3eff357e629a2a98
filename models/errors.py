"""Errors of models and their evaluation; each message says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hep_core.integrity import DamagedOutputError


class ModelError(Exception):
    """An error of a model or its evaluation that the user can fix."""


class SavedModelError(ModelError):
    """A model folder is incomplete, has another version, or is for other inputs."""


class DamagedModelError(DamagedOutputError, SavedModelError):
    """A file of a model is not what was written; a run makes it again."""


class ModelInputError(ModelError):
    """A model cannot take some events: their features or scalers do not fit its inputs."""


class MissingPluginError(ModelInputError):
    """A model has a network, or takes features, that no loaded plugin has."""

    def for_model(self, path: Path, plugins: Sequence[str]) -> SavedModelError:
        """Return the error of a saved model, whose training had some plugins."""
        advice = "If it is of a plugin, name that"
        # The saved model lists the plugins of its training.
        if plugins:
            advice = f"Its training had {', '.join(plugins)}: name it"
        return SavedModelError(
            f"{path}: {self}. {advice} in `plugins` of the config (--config); "
            "in Python, load_classifier(path, plugins=[...])."
        )


class PluginCodeError(ModelError):
    """The code of a plugin has another meaning than where a model or its features were made.

    `made` begins the message, as in `hlf was trained`. `plugins` are the files of the plugins now,
    `parts` what is taken from them, such as `feature ht_ratio`.
    """

    def __init__(self, made: str, plugins: Sequence[str], parts: Sequence[str]) -> None:
        source = f"plugin {', '.join(plugins)}"
        # Code of a notebook has no file.
        if not plugins:
            source = "plugin"
        part_names = ", ".join(parts)
        super().__init__(
            f"{made} with other code of the {source} ({part_names}). Make the features and train "
            f"again (`python -m pipeline run`), or bring back that code; comments and formatting "
            f"do not count. In a notebook, restart Python then."
        )


class UndefinedMetricError(ModelError):
    """A number cannot be computed from the events, such as the AUC of a class without events."""


class FirmwareError(ModelError):
    """A simulation of firmware could not be compiled."""
