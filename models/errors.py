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


class InputError(ModelError):
    """Features or their scalers do not fit the inputs of a network."""


class UnknownPartError(InputError):
    """A model has a network, or takes features, that no loaded plugin has."""

    def of(self, place: Path, plugins: Sequence[str]) -> SavedModelError:
        """The error of a model at a place, whose training had some plugins."""
        had = (
            f"Its training had {', '.join(plugins)}: name it"
            if plugins
            else "If it is of a plugin, name that"
        )
        return SavedModelError(
            f"{place}: {self}. {had} in `plugins` of the config (--config); in Python, load_classifier(path, "
            f"plugins=[...])."
        )


class UndefinedMetricError(ModelError):
    """A number cannot be computed from the events, such as the AUC of a class without events."""


class SimulationError(ModelError):
    """A simulation of firmware could not be compiled."""
