"""Two runs at the same moment: the one that was refused named the process of the run before, or none."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.errors import RunFolderError
from pipeline.runs.lock import locked


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("of_a_killed_run", [True, False])
def test_it_waits_for_the_name_of_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_a_killed_run: bool
) -> None:
    monkeypatch.setattr("pipeline.runs.lock._SECONDS_FOR_A_NAME", 60.0)
    path = tmp_path / ".lock"
    ended = ended_process()
    path.write_text(str(ended) if of_a_killed_run else "")
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def write_name() -> None:
            time.sleep(0.2)
            path.write_text(str(os.getpid()))

        writer = threading.Thread(target=write_name)
        writer.start()
        with pytest.raises(RunFolderError, match=rf"process {os.getpid()}\)"), locked(tmp_path):
            pytest.fail("it was not refused")
        writer.join()


@pytest.mark.slow
def test_a_name_of_another_machine_is_named_after_a_while(tmp_path: Path) -> None:
    ended = ended_process()
    path = tmp_path / ".lock"
    path.write_text(str(ended))
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match=rf"process {ended}\)"), locked(tmp_path):
            pytest.fail("it was not refused")


def test_the_name_goes_with_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert (tmp_path / ".lock").read_text() == ""
