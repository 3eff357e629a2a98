"""Which files count as changed, and which parts of an earlier version are taken over. No Spark."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
import uproot
from delphes_files import checked_files, write_delphes
from event_rows import Row, event_row, lepton

from hep_core.input_errors import UnreachableFileError, UnreadableFileError
from ingestion.changes import carry_over_revisions, content_digest, is_unchanged
from ingestion.file_info import FileInfo

MET, OTHER_MET = 123.4375, 125.5


def events(count: int = 3) -> list[Row]:
    return [
        event_row(met=MET if n == 0 else 50.0 + n, electrons=[lepton(40.0 + n, 0, 0)])
        for n in range(count)
    ]


def write_plain(path: Path, rows: list[Row], *, uuid: UUID) -> Path:
    """A file of a known UUID, not compressed: its numbers can be found in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            uproot,
            "recreate",
            partial(uproot.recreate, compression=None, uuid_function=lambda: uuid),
        )
        return write_delphes(path, rows)


def change_in_place(path: Path) -> Path:
    """Another MET in the first event: same UUID, same size, same number of entries, later time."""
    file_bytes, stat_before = path.read_bytes(), path.stat()
    old, new = struct.pack(">f", MET), struct.pack(">f", OTHER_MET)
    assert file_bytes.count(old) == 1
    path.write_bytes(file_bytes.replace(old, new))
    os.utime(path, ns=(stat_before.st_atime_ns, stat_before.st_mtime_ns + 10**9))
    return path


def touch(path: Path) -> Path:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))
    return path


def moved(path: Path) -> Path:
    return path.rename(path.with_name("elsewhere.root"))


def shorter(path: Path) -> Path:
    return write_plain(path, events(2), uuid=uuid5(NAMESPACE_URL, "a"))


def longer(path: Path) -> Path:
    return write_plain(path, events(5), uuid=uuid5(NAMESPACE_URL, "a"))


def as_read(*paths: Path, earlier: list[FileInfo] | None = None) -> list[FileInfo]:
    """What a manifest says after the files have been read."""
    return [
        info._replace(digest=content_digest(info.path))
        for info in carry_over_revisions(checked_files(*paths), earlier or [])
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "a.root", events(), uuid=uuid5(NAMESPACE_URL, "a"))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda path: path, True),
        (touch, True),
        (moved, True),
        (lambda path: touch(moved(path)), True),
        (change_in_place, False),
        (shorter, False),
        (longer, False),
    ],
)
def test_the_content_decides_whether_a_file_is_unchanged(
    path: Path, change: Callable[[Path], Path], same: bool
) -> None:
    (old,) = as_read(path)

    (new,) = carry_over_revisions(checked_files(change(path)), [old])

    assert new.uuid == old.uuid
    assert is_unchanged(new, old) is same
    expected = (old.digest, "") if same else ("", new.modified)
    assert (new.digest, new.revision) == expected
    # Once it is read, touching it changes nothing.
    (read_again,) = as_read(Path(new.path), earlier=[old])
    (touched,) = carry_over_revisions(checked_files(touch(Path(new.path))), [read_again])
    assert is_unchanged(touched, read_again)


def test_a_file_of_a_new_uuid_has_neither_digest_nor_revision(path: Path) -> None:
    old = as_read(path)
    write_plain(path, events(), uuid=uuid5(NAMESPACE_URL, "another"))

    (info,) = carry_over_revisions(checked_files(path), old)

    assert (info.digest, info.revision) == ("", "")
    assert not is_unchanged(info, None)


@pytest.mark.parametrize(
    "change", [{"size": 1}, {"entries": 1}, {"revision": "of another day"}], ids=str
)
def test_a_file_of_another_size_number_of_entries_or_revision_is_changed(
    path: Path, change: dict[str, Any]
) -> None:
    (old,) = as_read(path)
    new = old._replace(**change)

    assert not is_unchanged(new, old)
    if "revision" not in change:
        (info,) = carry_over_revisions([new], [old])
        assert (info.digest, info.revision) == ("", new.modified)


def test_the_content_of_a_file_of_the_same_time_is_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = as_read(path)
    monkeypatch.delattr("ingestion.changes.content_digest")

    assert carry_over_revisions(checked_files(path), old) == old


def test_a_touched_file_whose_content_cannot_be_read_counts_as_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = as_read(path)

    def unreadable(name: str) -> str:
        raise UnreadableFileError(name)

    monkeypatch.setattr("ingestion.changes.content_digest", unreadable)
    (info,) = carry_over_revisions(checked_files(touch(path)), [old])

    assert not is_unchanged(info, old)


def test_a_touched_file_without_entries_is_unchanged(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "empty.root", [], uuid=uuid5(NAMESPACE_URL, "empty"))
    (old,) = as_read(path)

    (info,) = carry_over_revisions(checked_files(touch(path)), [old])

    assert is_unchanged(info, old)


def test_without_a_digest_another_time_is_a_change(path: Path) -> None:
    (unread,) = carry_over_revisions(checked_files(path), [])

    (info,) = carry_over_revisions(checked_files(touch(path)), [unread])

    assert not is_unchanged(info, unread)


@pytest.mark.parametrize(
    ("old_time", "new_time", "is_same"),
    [("yesterday", "yesterday", True), ("yesterday", "today", False), ("", "", False)],
)
def test_the_time_of_a_remote_file_decides(
    path: Path, old_time: str, new_time: str, is_same: bool
) -> None:
    (local,) = checked_files(path)
    old = local._replace(path="https://host/a.root", modified=old_time, revision="first")

    (info,) = carry_over_revisions([old._replace(modified=new_time, revision="")], [old])

    assert is_unchanged(info, old) is is_same


def test_content_that_is_gone_or_out_of_reach_names_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnreadableFileError, match=r"gone\.root cannot be opened any more"):
        content_digest(str(path.with_name("gone.root")))

    def unreachable(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", unreachable)
    with pytest.raises(
        UnreachableFileError, match=r"a\.root: its content could not be read \(OSError"
    ):
        content_digest(str(path))
