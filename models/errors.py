"""What can be wrong with models and their evaluation; each message says what, where and what to do."""

from __future__ import annotations


class ModelError(Exception):
    """Something about a model or its evaluation that the user can mend."""


class SavedModelError(ModelError):
    """A model folder is incomplete, of another version, or was made for other inputs."""


class InputError(ModelError):
    """Features, or the numbers that scale them, are not what a network takes."""


class UndefinedMetricError(ModelError):
    """A number cannot be computed from these events, such as the AUC of a class that is not there."""
