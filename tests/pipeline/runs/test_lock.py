"""One run at a time in a run folder; the lock leaves nothing of its own behind."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import RunFolderError
from pipeline.runs.lock import locked


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(RunFolderError, match=r"run: its file system cannot lock files .*choose a run_dir on another"),
        locked(tmp_path / "run"),
    ):
        pytest.fail("it was not refused")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_folder_in_which_nothing_was_made_is_removed_again(tmp_path: Path, fails: bool) -> None:
    with suppress(ValueError), locked(tmp_path / "new" / "run"):
        assert (tmp_path / "new" / "run" / ".lock").exists()
        if fails:
            raise ValueError("it failed")
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "new" / "run"):
        (tmp_path / "new" / "run" / "ingest").mkdir()
    assert {path.name for path in (tmp_path / "new" / "run").iterdir()} == {".lock", "ingest"}
    # One that was there before stays.
    (tmp_path / "other").mkdir()
    with locked(tmp_path / "other"):
        pass
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".lock"]


def test_a_lock_file_that_was_removed_meanwhile_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, path = fcntl.flock, tmp_path / "run" / ".lock"
    removed = []

    def after_the_other_removed_it(file: Any, how: int) -> None:
        if not removed:
            removed.append(path)
            path.unlink()
            path.parent.rmdir()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", after_the_other_removed_it)
    with locked(tmp_path / "run"):
        assert path.read_text() == str(os.getpid())


def test_a_run_folder_with_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot be written .*File name too long"), locked(tmp_path / ("x" * 300)):
        pytest.fail("it was not refused")
