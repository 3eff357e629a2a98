"""Only folders that this code made are removed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from pipeline.errors import FolderInUseError, RunFolderError
from pipeline.runs import own_folders
from pipeline.runs.own_folders import MARKER


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    folder = tmp_path / "ours"
    own_folders.make(folder)
    (folder / "data").write_text("ours")
    (folder / "below").mkdir()
    (folder / "below" / "more").write_text("ours")
    return folder


def test_only_what_was_made_is_removed(tmp_path: Path, ours: Path) -> None:
    theirs, empty, gone = (tmp_path / name for name in ("theirs", "empty", "gone"))
    theirs.mkdir()
    (theirs / "notes").write_text("mine")
    # What a kill left just as it was made.
    empty.mkdir()
    assert [own_folders.is_ours(folder) for folder in (ours, theirs, empty, gone)] == [
        True,
        False,
        True,
        False,
    ]
    for folder in (ours, theirs, empty, gone):
        own_folders.remove(folder)
    assert [folder.exists() for folder in (ours, theirs, empty, gone)] == [
        False,
        True,
        False,
        False,
    ]
    assert (theirs / "notes").read_text() == "mine"


def test_links_are_not_followed(tmp_path: Path, ours: Path) -> None:
    link, outside = tmp_path / "link", tmp_path / "outside"
    link.symlink_to(ours)
    assert not own_folders.is_ours(link)
    own_folders.remove(link)
    assert link.is_symlink()
    assert (ours / "data").exists()

    outside.mkdir()
    (outside / "notes").write_text("mine")
    (ours / "to-folder").symlink_to(outside)
    (ours / "to-file").symlink_to(outside / "notes")
    own_folders.remove(ours)
    assert not ours.exists()
    assert (outside / "notes").read_text() == "mine"


def test_what_an_interrupted_removal_leaves_is_still_ours(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def interrupted(path: Path, **options: bool) -> None:
        if path.name == MARKER:
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            own_folders.remove(ours)
    assert [path.name for path in ours.iterdir()] == [MARKER]
    own_folders.remove(ours)
    assert not ours.exists()


def test_a_folder_of_the_user_that_another_command_writes_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with own_folders.new_folder(folder) as unfinished:
        (unfinished / "scores.parquet").write_text("half")
        with (
            pytest.raises(FolderInUseError, match=r"is writing .*scores"),
            own_folders.new_folder(folder),
        ):
            pytest.fail("two commands write the folder")
        assert (unfinished / "scores.parquet").read_text() == "half"
    assert [path.name for path in folder.iterdir()] == ["scores.parquet"]


def write_scores(folder: Path, *, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Write a new folder with a file of scores, while something else happens."""
    with own_folders.new_folder(folder) as unfinished:
        (unfinished / "scores.parquet").write_text("scores")
        meanwhile()


def after(operation: Callable[..., Any], begin_another: Callable[[], object]) -> Callable[..., Any]:
    """Return an operation after which another command begins, also if the operation fails."""

    def operate(*arguments: Any, **options: Any) -> Any:
        try:
            return operation(*arguments, **options)
        finally:
            begin_another()

    return operate


@pytest.mark.parametrize("leftover", ["none", "empty", "marked"])
@pytest.mark.parametrize("second_fails", [False, True], ids=["writes", "fails"])
@pytest.mark.parametrize(
    ("module", "operation"),
    [
        (Path, "exists"),
        (Path, "mkdir"),
        (Path, "open"),
        (fcntl, "flock"),
        # These read the folder of a killed command.
        (Path, "is_dir"),
        (Path, "iterdir"),
    ],
)
def test_of_two_commands_that_begin_at_once_one_writes_and_the_other_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    operation: str,
    second_fails: bool,
    leftover: str,
) -> None:
    folder, unfinished = tmp_path / "scores", tmp_path / ".scores.unfinished"
    if leftover != "none":
        unfinished.mkdir()
    if leftover == "marked":
        (unfinished / MARKER).touch()
        (unfinished / "scores.parquet").write_text("killed")
    writers = []
    with ExitStack() as second_command:

        def begin_the_second_command() -> None:
            monkeypatch.undo()
            second_folder = second_command.enter_context(own_folders.new_folder(folder))
            (second_folder / "scores.parquet").write_text("second")
            writers.append("second")

        def begin_and_fail() -> None:
            monkeypatch.undo()
            with suppress(InterruptedError), own_folders.new_folder(folder):
                raise InterruptedError

        begin = begin_and_fail if second_fails else begin_the_second_command

        def begin_unless_refused() -> None:
            with suppress(FolderInUseError):
                begin()

        monkeypatch.setattr(
            module, operation, after(getattr(module, operation), begin_unless_refused)
        )
        with suppress(FolderInUseError), own_folders.new_folder(folder) as first_folder:
            (first_folder / "scores.parquet").write_text("first")
            writers.append("first")
    monkeypatch.undo()

    if not second_fails:
        assert len(writers) == 1
    assert [path.read_text() for path in folder.glob("*")] == writers
    assert not unfinished.exists()


def test_a_folder_below_a_link_to_nothing_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")

    with pytest.raises(RunFolderError, match=r"\.scores\.unfinished cannot be written"):
        write_scores(tmp_path / "link" / "scores")


def test_a_failed_command_removes_its_folder_before_another_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_claimed = []
    remove = own_folders.remove

    def remove_and_record(unfinished: Path) -> None:
        was_claimed.append(own_folders.is_claimed(unfinished))
        remove(unfinished)

    monkeypatch.setattr(own_folders, "remove", remove_and_record)
    with pytest.raises(KeyboardInterrupt), own_folders.new_folder(tmp_path / "scores"):
        raise KeyboardInterrupt

    assert was_claimed[-1:] == [True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("operation", ["rename", "unlink"])
def test_a_kill_at_the_end_of_a_command_leaves_no_folder_that_stops_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    folder = tmp_path / "scores"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, operation, killed)
        # A killed process removes nothing.
        patch.setattr(own_folders, "remove", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            write_scores(folder)
    if not folder.exists():
        write_scores(folder)

    assert (folder / "scores.parquet").exists()
    assert {path.name for path in folder.iterdir()} <= {"scores.parquet", MARKER}


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with pytest.raises(RunFolderError, match=r"scores exists already"):
        write_scores(folder, meanwhile=folder.mkdir)
    assert [path.name for path in tmp_path.iterdir()] == ["scores"]
    assert not list(folder.iterdir())


def test_a_folder_that_was_made_again_is_not_removed_as_the_old_one(ours: Path) -> None:
    stale_folder = ours.rename(ours.with_name("stale"))
    flock = fcntl.flock

    def flock_after_the_folder_was_made_again(marker: TextIO, operation: int) -> None:
        # Another process removed and made it between the opening of its marker and the lock.
        own_folders.remove(stale_folder)
        own_folders.make(stale_folder)
        flock(marker, operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock_after_the_folder_was_made_again)
        with own_folders.unclaimed([stale_folder]) as folders:
            assert folders == []


def test_a_folder_of_the_user_may_lie_where_files_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with own_folders.new_folder(tmp_path / "scores") as unfinished:
        (unfinished / "scores.parquet").write_text("whole")
    assert (tmp_path / "scores" / "scores.parquet").exists()


def test_a_claim_is_kept_until_the_command_ends(ours: Path) -> None:
    own_folders.claim(ours)
    assert not own_folders.is_claimed(ours)

    with own_folders.keeping_claims():
        assert not own_folders.is_claimed(ours)
        own_folders.claim(ours)
        assert own_folders.is_claimed(ours)

    assert not own_folders.is_claimed(ours)


def test_only_folders_that_nobody_has_claimed_are_held(tmp_path: Path, ours: Path) -> None:
    free = tmp_path / "free"
    own_folders.make(free)

    with own_folders.claimed([ours]), own_folders.unclaimed([ours, free]) as folders:
        assert folders == [free]
        assert own_folders.is_claimed(ours)
    with own_folders.unclaimed([ours, free]) as folders:
        assert folders == [ours, free]


def test_a_folder_is_removed_only_if_nobody_has_claimed_it(ours: Path) -> None:
    with own_folders.claimed([ours]):
        own_folders.remove_unclaimed(ours)
        assert (ours / "data").exists()

    own_folders.remove_unclaimed(ours)
    assert not ours.exists()
