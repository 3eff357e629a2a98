"""Trainings that the power ends at a chosen moment."""

from __future__ import annotations

from typing import Any

from training.loop.records import DiskFiles


class PowerCutError(Exception):
    """The training ends here."""


class FilesWithPowerCut(DiskFiles):
    """The power fails at the end of the second epoch."""

    def record(self, record: dict[str, Any]) -> None:
        if record["epoch"] == 1:
            raise PowerCutError
        super().record(record)
