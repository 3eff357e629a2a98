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
    (state_before,) = as_read(path)
    (state_after,) = carry_over_revisions(checked_files(change(path)), [state_before])
    assert state_after.uuid == state_before.uuid
    assert is_unchanged(state_after, state_before) is same
    assert (state_after.digest, state_after.revision) == (
        (state_before.digest, "") if same else ("", state_after.modified)
    )
    # Once it is read, it is the new one; touching it changes nothing.
    repeated = as_read(Path(state_after.path), earlier=[state_before])
    assert is_unchanged(
        carry_over_revisions(checked_files(touch(Path(state_after.path))), repeated)[0], repeated[0]
    )


def test_a_new_file_and_one_of_another_uuid_have_neither_digest_nor_revision(path: Path) -> None:
    as_read_before = as_read(path)
    write_plain(path, events(), uuid=uuid5(NAMESPACE_URL, "another"))
    for earlier in ([], as_read_before):
        (info,) = carry_over_revisions(checked_files(path), earlier)
        assert (info.digest, info.revision) == ("", "")
    assert not is_unchanged(info, None)


@pytest.mark.parametrize(
    "change", [{"size": 1}, {"entries": 1}, {"revision": "of another day"}], ids=str
)
def test_a_file_of_another_size_number_of_entries_or_revision_is_changed(
    path: Path, change: dict[str, Any]
) -> None:
    (state_before,) = as_read(path)
    replace_after = state_before._replace(**change)
    assert not is_unchanged(replace_after, state_before)
    if "revision" not in change:
        (info,) = carry_over_revisions([replace_after], [state_before])
        assert (info.digest, info.revision) == ("", replace_after.modified)


def test_a_file_left_alone_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_read_before = as_read(path)

    def never(_: str) -> str:
        raise AssertionError("the content was read")

    monkeypatch.setattr("ingestion.changes.content_digest", never)
    assert carry_over_revisions(checked_files(path), as_read_before) == as_read_before


def test_a_touched_file_whose_content_cannot_be_read_counts_as_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_read_before = as_read(path)

    def unreadable(name: str) -> str:
        raise UnreadableFileError(name)

    monkeypatch.setattr("ingestion.changes.content_digest", unreadable)
    (info,) = carry_over_revisions(checked_files(touch(path)), as_read_before)
    assert not is_unchanged(info, as_read_before[0])


def test_a_touched_file_without_entries_is_unchanged(tmp_path: Path) -> None:
    as_read_before = as_read(
        path := write_plain(tmp_path / "empty.root", [], uuid=uuid5(NAMESPACE_URL, "empty"))
    )
    assert is_unchanged(
        carry_over_revisions(checked_files(touch(path)), as_read_before)[0], as_read_before[0]
    )


def test_a_file_whose_digest_is_not_known_counts_as_changed_when_its_time_differs(
    path: Path,
) -> None:
    carry_over_revisions_before = carry_over_revisions(checked_files(path), [])
    assert not is_unchanged(
        carry_over_revisions(checked_files(touch(path)), carry_over_revisions_before)[0],
        carry_over_revisions_before[0],
    )
    # The server of a remote file tells nothing but its size and its time, which may be unknown.
    remote = carry_over_revisions_before[0]._replace(
        path="https://host/a.root", modified="yesterday"
    )
    for modified, is_same in (("yesterday", True), ("today", False)):
        (info,) = carry_over_revisions([remote._replace(modified=modified, revision="")], [remote])
        assert is_unchanged(info, remote) is is_same
    unknown = remote._replace(modified="", revision="first")
    (info,) = carry_over_revisions([unknown], [unknown])
    assert not is_unchanged(info, unknown)


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
