"""The command line in this process, with a Spark that outlives it: starting one takes longer than
most commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.machine.spark_session import SparkProvider


class LentSpark:
    """In the place of a run folder's own `SparkProvider`: one that others use too."""

    def __init__(self, provider: SparkProvider) -> None:
        self.context = provider.context
        self.num_tasks = provider.num_tasks

    def release(self) -> None:
        """Others use it too."""

    def stop(self) -> None:
        """Others use it too."""


def without_figures(patch: pytest.MonkeyPatch) -> None:
    """Files of figures stay empty: the layout of figures takes longer than most stages."""
    patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
    patch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).write_bytes(b""))


def with_brief_timing(patch: pytest.MonkeyPatch) -> None:
    """The throughput of exported networks is measured with one batch, not for half a second."""
    from models.export import latency

    patch.setattr(latency, "measure_throughput", partial(latency.measure_throughput, seconds=0.0))


def command(provider: SparkProvider, *arguments: str | Path, figures: bool = False) -> Any:
    """`python -m pipeline ...` here, `without_figures` unless a test wants them.

    Returns typer's result, with `exit_code`, `stdout` and `stderr`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run_folder.SparkProvider", lambda *_: LentSpark(provider))
        with_brief_timing(patch)
        if not figures:
            without_figures(patch)
        return CliRunner().invoke(app, [str(argument) for argument in arguments])
