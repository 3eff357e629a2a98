"""Errors of a training run; each message says what is wrong, where, and what to do."""

from __future__ import annotations


class TrainingError(Exception):
    """An error of a training run that the user can fix."""


class ShardError(TrainingError):
    """The dataset has too few row groups for the workers."""


class IdleSettingError(TrainingError):
    """Something that is set can never act in a run."""


class NoEventsError(TrainingError):
    """A split has no events."""


class HostileDatasetError(TrainingError):
    """The dataset carries a pickled schema, whose code petastorm would execute."""


class PetastormVersionError(TrainingError):
    """The installed petastorm has another version than the compatibility module supports."""


class DamagedDatasetError(TrainingError):
    """A file of the features dataset is missing or cannot be read."""


class ImageFileError(TrainingError):
    """A file of images is missing, damaged, or another than the public one."""


class CacheError(TrainingError):
    """A split does not fit into memory."""


class DivergedError(TrainingError):
    """The loss or the parameters are no longer finite."""


class LaunchError(TrainingError):
    """The MPI processes did not start, or one of them failed."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged, incomplete, or belongs to another run."""


class StalledError(TrainingError):
    """No worker has made progress for too long."""


class StudyError(TrainingError):
    """A comparison cannot continue: a process was killed, or a result cannot be read."""
