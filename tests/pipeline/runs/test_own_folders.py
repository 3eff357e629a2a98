"""Only folders that this code made are removed."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from pipeline.errors import FolderInUseError
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
