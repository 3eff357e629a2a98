"""Errors of models and their evaluation; each message says what is wrong, where, and what to do."""

from __future__ import annotations


class ModelError(Exception):
    """An error of a model or its evaluation that the user can fix."""


class SavedModelError(ModelError):
    """A model folder is incomplete, has another version, or is for other inputs."""


class InputError(ModelError):
    """Features or their scalers do not fit the inputs of a network."""


class UnknownPartError(InputError):
    """A model has a network, or takes features, that no loaded plugin has."""


class UndefinedMetricError(ModelError):
    """A number cannot be computed from the events, such as the AUC of a class without events."""


class SimulationError(ModelError):
    """A simulation of firmware could not be compiled."""
