"""What can be wrong with a training run; each message says what, where and what to do."""

from __future__ import annotations


class TrainingError(Exception):
    """Something about a training run that the user can mend."""


class ShardError(TrainingError):
    """The dataset has too few row groups for the workers."""


class HostileDatasetError(TrainingError):
    """The dataset carries a pickled schema, which reading it with petastorm would execute."""


class PetastormVersionError(TrainingError):
    """The installed petastorm is not the one that the compatibility module was made for."""


class DamagedDatasetError(TrainingError):
    """A file of the features dataset is missing or cannot be read."""


class CacheError(TrainingError):
    """A split does not fit into memory."""


class DivergedError(TrainingError):
    """The loss or the parameters are no longer finite."""


class LaunchError(TrainingError):
    """The MPI processes could not be started, or one of them failed."""


class TopologyError(TrainingError):
    """The communication graph does not exist for this number of workers."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged, incomplete, or of another run."""


class StalledError(TrainingError):
    """No worker has made progress for too long."""


class WarmStartError(TrainingError):
    """A training cannot begin with the model that it is told to."""
