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

    Args:
        subject: What used that code, such as `the training of hlf`.
        plugins: The files of the plugins now; code of a notebook has none.
        parts: What is taken from them, such as `feature ht_ratio`.
    """

    def __init__(self, subject: str, plugins: Sequence[str], parts: Sequence[str]) -> None:
        source = "plugin"
        if plugins:
            source = f"plugin {', '.join(plugins)}"
        part_names = ", ".join(parts)
        self.difference = f"{subject} used other code of the {source} ({part_names})"
        super().__init__(
            f"{self.difference}. Make the features and train again (`python -m pipeline run`), or "
            f"bring back that code; comments and formatting do not count. In a notebook, restart "
            f"Python then."
        )


class UndefinedMetricError(ModelError):
    """A number cannot be computed from the events, such as the AUC of a class without events."""


class FirmwareError(ModelError):
    """A simulation of firmware could not be compiled."""
