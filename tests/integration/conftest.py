"""What several of these modules start from."""

from __future__ import annotations

import os

import pytest
from finished_run import FinishedRun
from lent_spark import without_figures


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A finished run, made once by all test processes; each test puts its run folder back to where it wants it."""
    own_value = tmp_path_factory.getbasetemp()
    shared = own_value.parent if "PYTEST_XDIST_WORKER" in os.environ else own_value
    return FinishedRun(tmp_path_factory.mktemp("finished_run") / "Jürgen's", shared / "finished")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands in this process whose figures no test reads."""
    without_figures(monkeypatch)
