"""One run at a time in a run folder; the lock leaves nothing of its own behind."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import FolderInUseError, RunFolderError
from pipeline.runs.lock import locked


def test_a_file_system_without_locks_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(RunFolderError, match=r"run: its file system cannot lock files .*choose a run_dir on another"),
        locked(tmp_path / "run"),
    ):
        pytest.fail("it was not refused")


def test_a_run_folder_with_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot be written .*File name too long"), locked(tmp_path / ("x" * 300)):
        pytest.fail("it was not refused")


def test_a_folder_in_which_nothing_was_made_is_removed_and_its_lock_file_cannot_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, path = fcntl.flock, tmp_path / "run" / ".lock"
    with locked(tmp_path / "run"):
        assert path.exists()
    assert list(tmp_path.iterdir()) == []

    def after_the_other_removed_it(file: Any, how: int) -> None:
        path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", after_the_other_removed_it)
    with pytest.raises(FolderInUseError), locked(tmp_path / "run"):
        pytest.fail("two runs hold the folder")


@pytest.mark.parametrize("then", ["says who it is", "ends"])
def test_a_run_that_had_just_begun_or_ended_was_named_unknown(tmp_path: Path, then: str) -> None:
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def later() -> None:
            if then == "ends":
                fcntl.flock(file, fcntl.LOCK_UN)
            else:
                file.write("4321")
                file.flush()

        timer = threading.Timer(0.2, later)
        timer.start()
        expected = pytest.raises(FolderInUseError, match=r"\(process 4321\)") if then != "ends" else nullcontext()
        with expected, locked(tmp_path):
            assert then == "ends"
            assert (tmp_path / ".lock").read_text() == str(os.getpid())
        timer.join()
