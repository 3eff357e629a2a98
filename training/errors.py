"""Errors of a training run; each message says what is wrong, where, and what to do."""

from __future__ import annotations


class TrainingError(Exception):
    """An error of a training run that the user can fix."""


class ShardError(TrainingError):
    """A split has no events, or fewer than there are workers."""


class IdleSettingError(TrainingError):
    """A setting has no effect in a run."""


class ColumnError(TrainingError):
    """A column or class of `train.decorrelate` is missing, or the loss cannot use the column."""


class FrozenNetworkError(TrainingError):
    """A network has no parameter to train."""


class NoMatrixError(TrainingError):
    """A network has no matrix for an optimiser of matrices."""


class DamagedDatasetError(TrainingError):
    """A file of a dataset is missing or unreadable, is not the public one, or would run code."""


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
