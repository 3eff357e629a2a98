"""Errors of the command line, the config and the run folder, and the list of all user errors."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from features.errors import FeatureError
from hep_core.causes import error_and_causes
from hep_core.input_errors import InputFileError
from hep_core.integrity import DamagedOutputError
from hep_core.plugins import PluginError
from hep_core.tokens import advice_on_tokens
from hep_core.unknown_names import did_you_mean
from ingestion.errors import FilesToComeError
from models.errors import ModelError
from training.errors import TrainingError

#: Length at which a text in a message is cut.
_MAX_LETTERS: Final = 500
#: Error numbers of a folder that we may only read.
_WRITE_PROTECTED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
#: Error numbers of a disk that is full or read-only.
_FULL_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


class PipelineError(Exception):
    """Something that the user can fix."""


class ConfigError(PipelineError):
    """The config file, or a `--set`, is wrong."""


class MissingInputError(PipelineError):
    """A command needs input that does not exist, or that does not belong together."""


class NoOutputYetError(MissingInputError):
    """A stage needs the output of another stage, which has not run yet."""


class RunFolderError(PipelineError):
    """The run folder is locked by another run, damaged, or cannot be written."""


class FolderInUseError(RunFolderError):
    """Another command holds the part of the run folder that this command needs."""


class StorageInUseError(RunFolderError):
    """Another run folder writes to the storage of this one."""


def cannot_write(
    path: Path | str, cause: BaseException, *, alternative: str = "another run_dir"
) -> RunFolderError:
    """Make the error for a file or folder that the system does not let us write.

    `alternative` is what the message proposes to choose instead.
    """
    is_refused = isinstance(cause, PermissionError)
    return RunFolderError(
        f"{path} cannot be written ({cause}). Check space and permissions, and limits of file "
        f"sizes (`ulimit -f`), or choose {alternative}."
        f"{advice_on_tokens(str(path), is_refused=is_refused)}"
    )


def is_write_protected(error: RunFolderError) -> bool:
    """Return whether an error of `cannot_write` is about a folder that we may only read."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _WRITE_PROTECTED


class MachineError(PipelineError):
    """Something is wrong with this machine; see `doctor`."""


class LackOfMemoryError(MachineError):
    """The system gave a process no memory, or killed it for its memory."""


class UnreachableSparkError(MachineError):
    """The Spark cluster does not answer now; it may later."""


class SparkJobError(PipelineError):
    """A Spark job failed for a reason other than bad input."""


class PromotionError(PipelineError):
    """A trained network cannot be read or promoted; the message names each."""


class TrackingError(PipelineError):
    """MLflow refuses a record, or cannot be reached."""


class CheckFailedError(PipelineError):
    """A stage's result failed its own checks; it was not published."""


#: Errors with a message for the user; anything else is a bug of ours.
USER_ERRORS: Final = (
    *(PipelineError, PluginError, InputFileError, FeatureError, ModelError, TrainingError),
    DamagedOutputError,
)
#: Errors after which the same command may succeed later.
TEMPORARY_ERRORS: Final = (FolderInUseError, UnreachableSparkError)
#: Errors that say: the input of a command does not exist yet.
MISSING_INPUT_ERRORS: Final = (FilesToComeError, NoOutputYetError)


def nearest(name: str, available: Iterable[str]) -> str:
    """Return advice on an unknown name: ` Did you mean 'x'?`, or a list of all valid names.

    The text starts with a space.

    Examples:
        >>> nearest("isolation_con", ["isolation_cone", "min_jet_pt"])
        " Did you mean 'isolation_cone'?"
    """
    names = sorted(available)
    return did_you_mean(name, names) or f" There are: {', '.join(names)}."


def truncated(text: str) -> str:
    """Return a text, cut after 500 characters."""
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]} ..."


def full_disk_error(error: BaseException | None) -> OSError | None:
    """Return the system's error of a full or read-only disk that caused an error; else None.

    It searches the chain of causes. Libraries that then fail to close a half-written file raise
    another error, with this one as its context.

    Examples:
        >>> full_disk_error(OSError(errno.ENOSPC, "No space left on device"))
        OSError(28, 'No space left on device')
        >>> full_disk_error(ValueError("no number"))
    """
    for cause in error_and_causes(error):
        if isinstance(cause, OSError) and cause.errno in _FULL_DISK:
            return cause
    return None
