"""Fixtures for the tests of whole runs."""

from __future__ import annotations

import os

import pytest
from finished_run import FinishedRun
from lent_spark import without_figures


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A finished run, made once for all test processes.

    Each test puts the run folder back to the state that it needs.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    return FinishedRun(tmp_path_factory.mktemp("finished_run") / "Jürgen's", shared / "finished")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process leave the files of figures empty."""
    without_figures(monkeypatch)
