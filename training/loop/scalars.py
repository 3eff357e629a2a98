"""Writes numbers of a run for TensorBoard."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from training.errors import LaunchError

#: Among the files of a run.
FOLDER: Final = "tensorboard"
_SHOWN: Final = (
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
    "learning_rate",
    "consensus_distance",
    "wait_seconds",
    "seconds",
)


class TensorBoardScalars:
    """Writes numbers per epoch; the first ones make the file.

    `folder`: folder for `tensorboard --logdir`.

    Raises:
        LaunchError: The package tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter  # noqa: PLC0415 - an optional package
        except ImportError as cause:
            raise LaunchError(
                "train.tensorboard needs the package tensorboardX: `pip install tensorboardX`, or set it to false."
            ) from cause
        self._folder = folder
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def write(self, record: dict[str, Any]) -> None:
        """Add the numbers of an epoch."""
        if self._writer is None:
            self._writer = self._make(str(self._folder))
        for name in _SHOWN:
            self._writer.add_scalar(name, record[name], record["epoch"])
        self._writer.flush()

    def close(self) -> None:
        """Flush everything to disk."""
        if self._writer is not None:
            self._writer.close()


def write_all(records: Iterable[dict[str, Any]], folder: Path) -> None:
    """Write the numbers of a finished run; the folder is there once all are.

    Raises:
        LaunchError: The package tensorboardX is not there.
    """
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    scalars = TensorBoardScalars(unfinished)
    for record in records:
        scalars.write(record)
    scalars.close()
    unfinished.rename(folder)
