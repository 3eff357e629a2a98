"""Version folders and the pointer: a version is complete or absent."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from pipeline.errors import RunFolderError
from pipeline.runs import own_folders
from pipeline.runs.store import StageStore
from pipeline.runs.stored_files import KERNELS


def make(store: StageStore, digest: str = "abcdef0123456789") -> Path:
    folder = store.next_folder(digest)
    store.begin(folder)
    (folder / "data").write_text(folder.name)
    return folder


def test_commits_follow_each_other_and_old_versions_stay(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    for number in (1, 2):
        before = store.current()
        folder = make(store)
        assert (store.current(), store.names(folder)) == (before, False)
        version = store.commit(folder, {"number": number})
        assert store.names(folder)
    current = store.current()
    assert current is not None
    assert (current.name, current.manifest["number"]) == ("0002-abcdef01", 2)
    # The marker is no output.
    assert [each.path for each in version.files] == ["data"]
    assert json.loads(store.pointer.read_text()) == {"version": version.name}
    assert (tmp_path / "ingest" / "0001-abcdef01" / "data").exists()


def test_a_folder_that_cannot_be_listed_seemed_to_be_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of its versions on object storage were unused then."""
    store = StageStore(tmp_path, "ingest")
    store.commit(make(store), {})

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", fails)
    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(OSError, match="Input/output error"):
        store.complete()


def test_version_10000_was_older_than_version_9999(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    (store.folder / "9998-00000000").mkdir(parents=True)
    for _ in range(2):
        store.commit(make(store), {})
    assert store.complete() == ["9999-abcdef01", "10000-abcdef01"]
    for number in (10001, 10002):
        own_folders.make(store.folder / f"{number}-11111111")
    assert [path.name for path in store.unfinished()] == ["10002-11111111", "10001-11111111"]


def test_unfinished_versions_are_removed_by_the_next_begin_and_finished_ones_are_not(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    store.commit(make(store), {})
    unfinished = make(store)
    following = make(store)
    assert not unfinished.exists()
    assert (unfinished.name, following.name) == ("0002-abcdef01", "0003-abcdef01")
    assert (tmp_path / "ingest" / "0001-abcdef01").exists()


def test_a_version_with_manifest_but_without_pointer_is_not_seen(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    store.commit(make(store), {"number": 1})
    folder = make(store)
    (folder / "manifest.json").write_text('{"number": 2}')
    current = store.current()
    assert current is not None
    assert current.manifest["number"] == 1
    assert make(store).name == "0003-abcdef01"


@pytest.mark.parametrize("manifest", ["{}", "{", '{"manifest_version": 1}'])
def test_only_a_complete_version_of_this_code_is_put_in_use_after_a_kill(tmp_path: Path, manifest: str) -> None:
    store = StageStore(tmp_path, "ingest")
    first = store.commit(make(store), {"number": 1})
    second = store.commit(make(store), {"number": 2})
    store.point_to(first.name)
    assert store.recovered() == second == store.current()
    store.pointer.unlink()
    assert store.recovered() == second
    (make(store) / "manifest.json").write_text(manifest)
    assert store.recovered() == second
    stranger = store.folder / "0009-abcdef01"
    stranger.mkdir()
    (stranger / "manifest.json").write_text((second.folder / "manifest.json").read_text())
    assert store.recovered() == second
    # A version that earlier code made is none: its stage runs again.
    (second.folder / "manifest.json").write_text('{"manifest_version": 1}')
    assert store.current() is None


NOTES = ["2026-11-21-my-notes", "0007-deadbeef", "0001-abcdef01-backup", "\u00b2-x", "12", "0008-DEADBEEF"]


@pytest.mark.parametrize("name", NOTES)
def test_a_folder_that_somebody_else_made_is_left_alone(tmp_path: Path, name: str) -> None:
    store = StageStore(tmp_path, "ingest")
    store.commit(make(store), {})
    notes = store.folder / name
    notes.mkdir()
    (notes / "notes").write_text("mine")
    make(store)
    store.remove_unfinished()
    assert (notes / "notes").read_text() == "mine"
    assert store.unfinished() == []
    assert store.complete() == ["0001-abcdef01"]


def test_the_name_of_a_folder_that_somebody_else_made_is_not_used(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    (tmp_path / "ingest").mkdir()
    # As of an archive that is not mounted.
    (tmp_path / "ingest" / "0003-abcdef01").symlink_to(tmp_path / "nowhere")
    assert make(store).name == "0004-abcdef01"


def test_links_to_versions_are_read_and_not_removed(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "ingest")
    archive = tmp_path / "archive"
    archive.mkdir()
    for published in (True, False):
        folder = make(store)
        if published:
            store.commit(folder, {"number": 1})
        folder.rename(archive / folder.name)
        folder.symlink_to(archive / folder.name)
    current = store.current()
    assert current is not None
    assert current.manifest["number"] == 1
    make(store)
    store.remove_unfinished()
    store.discard(store.folder / "0002-abcdef01")
    assert sorted(path.name for path in archive.iterdir()) == ["0001-abcdef01", "0002-abcdef01"]
    assert (archive / "0002-abcdef01" / "data").exists()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        *(("current.json", text, "damaged") for text in ("", "{", '{"version": "0009-none"}', "[]")),
        *(("0001-abcdef01/manifest.json", text, "damaged") for text in ("[]", "null", '"x"', "{", "")),
        ("0001-abcdef01/manifest.json", '{"a": 1}', r"manifest\.json is incomplete"),
    ],
)
def test_a_damaged_pointer_or_manifest_is_named_with_the_fix(tmp_path: Path, file: str, text: str, words: str) -> None:
    store = StageStore(tmp_path, "ingest")
    store.commit(make(store), {})
    (store.folder / file).write_text(text)
    with pytest.raises(RunFolderError, match=rf"(?s){words}.*Remove .*current\.json"):
        store.current()
    if words == "damaged" and "manifest" in file:
        assert store.manifest_of("0001-abcdef01") is None


def test_unused_outputs_go_with_their_folders_and_those_in_use_stay(tmp_path: Path) -> None:
    store = StageStore(tmp_path, "features")
    folder = store.next_folder("0123456789")
    store.begin(folder)
    store.commit(
        folder,
        {"counters": {"kernel_outputs": [{"lies_in": each, "name": "used.parquet"} for each in ("first", "whole")]}},
    )
    kernels = store.folder / KERNELS
    files = {"first": ["used", "unused"], "second": ["used"], "shared": ["unused"], "whole": ["used"]}
    for name, stems in files.items():
        own_folders.make(kernels / name)
        for stem in stems:
            (kernels / name / f"{stem}.arrow").touch()
    # Something else lies in this folder: it stays.
    (kernels / "shared" / "notes.txt").touch()
    assert [path.name for path in store.unused_outputs()] == ["first", "second", "shared"]
    store.remove_unused_outputs()
    left = sorted(path.relative_to(kernels).as_posix() for path in kernels.glob("*/[!m]*"))
    assert left == ["first/used.arrow", "shared/notes.txt", "whole/used.arrow"]
    assert not (kernels / "second").exists()
