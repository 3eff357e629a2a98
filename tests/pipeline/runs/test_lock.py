"""One run at a time in a run folder; the lock leaves nothing of its own behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from disks import disk_at, fill

from pipeline.errors import FolderInUseError, RunFolderError
from pipeline.runs.lock import locked
from pipeline.runs.own_folders import claimed
from pipeline.runs.store import StageStore


def test_a_file_system_without_locks_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(
            RunFolderError,
            match=r"run: its file system cannot lock files .*choose a run_dir on another",
        ),
        locked(tmp_path / "run"),
    ):
        pytest.fail("it was not refused")


def test_a_run_folder_with_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFolderError, match=r"cannot be written .*File name too long"),
        locked(tmp_path / ("x" * 300)),
    ):
        pytest.fail("it was not refused")


def test_a_folder_in_which_nothing_was_made_is_removed_and_its_lock_file_cannot_be_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, folder = fcntl.flock, tmp_path / "run"
    with locked(folder / "compare"):
        assert (folder / "compare" / ".lock").exists()
    assert list(tmp_path.iterdir()) == []

    def after_the_other_removed_it(file: Any, how: int) -> None:
        if folder.exists():
            (folder / ".lock").unlink()
            folder.rmdir()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", after_the_other_removed_it)
    with pytest.raises(FolderInUseError), locked(folder):
        pytest.fail("two runs hold the folder")


def test_a_folder_stays_locked_after_its_lock_file_was_removed(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / ".lock").unlink()
        with pytest.raises(FolderInUseError), locked(tmp_path):
            pytest.fail("two runs hold the folder")
    with locked(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_a_folder_that_was_moved_stays_locked(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        with (
            pytest.raises(FolderInUseError, match=f"process {os.getpid()}"),
            locked(tmp_path / "moved"),
        ):
            pytest.fail("two runs hold the folder")


def test_where_only_files_can_be_locked_the_lock_file_holds_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def of_files_only(file: Any, how: int) -> None:
        if isinstance(file, int):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", of_files_only)
    with locked(tmp_path), pytest.raises(FolderInUseError), locked(tmp_path):
        pytest.fail("two runs hold the folder")


def test_a_killed_holder_frees_the_folder(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from pipeline.runs.lock import locked
from pipeline.runs.own_folders import claimed
from pipeline.runs.store import StageStore
with locked(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    completed = subprocess.run([sys.executable, "-c", program], check=False)
    assert completed.returncode == -signal.SIGKILL
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_folder_on_a_full_disk_can_be_held(tmp_path: Path) -> None:
    with disk_at(tmp_path, 1):
        (tmp_path / ".lock").touch()
        fill(tmp_path / "filler")

        with locked(tmp_path):
            with (
                pytest.raises(FolderInUseError, match="process unknown"),
                locked(tmp_path),
            ):
                pytest.fail("two runs hold the folder")
            (tmp_path / "filler").unlink()


def test_a_version_that_is_written_is_not_removed(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "train")
    folder = store.next_folder("0123456789")
    store.create(folder)
    with claimed([folder]):
        assert not store.may_remove(folder)
        store.remove_unfinished()
        assert folder.exists()
        # The job that writes it removes it after a failure.
        store.discard(folder)
        assert not folder.exists()


@pytest.mark.parametrize("then", ["says who it is", "ends"])
def test_the_holder_of_a_lock_is_named_from_its_begin_to_its_end(tmp_path: Path, then: str) -> None:
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
        expected = (
            pytest.raises(FolderInUseError, match=r"\(process 4321\)")
            if then != "ends"
            else nullcontext()
        )
        with expected, locked(tmp_path):
            assert then == "ends"
            assert (tmp_path / ".lock").read_text() == str(os.getpid())
        timer.join()
