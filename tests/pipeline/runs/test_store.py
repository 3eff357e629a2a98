"""Version folders and the pointer: a version is complete or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from example_stores import DIGEST, commit_version, create_version, current_version
from published_by_hand import example_manifest, example_model_manifest

from hep_core.atomic_files import write_atomically
from pipeline.errors import RunFolderError
from pipeline.runs import own_folders
from pipeline.runs.model_registry import Registry
from pipeline.runs.store import StageStore


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path, "ingest")


def test_a_committed_version_is_in_use_and_the_earlier_one_stays(store: StageStore) -> None:
    first = commit_version(store)
    folder = create_version(store)
    assert not store.is_in_use(folder)
    assert store.current() == first

    second = store.commit(folder, example_manifest("ingest", seconds=2))

    assert store.is_in_use(folder)
    assert store.current() == second
    assert (second.name, second.manifest.seconds) == ("0002-abcdef01", 2)
    # The marker is no output.
    assert [file.path for file in second.files] == ["data"]
    assert json.loads(store.pointer.read_text()) == {"version": second.name}
    assert (first.folder / "data").exists()


@pytest.mark.parametrize("num_writes", range(3))
def test_a_kill_before_the_pointer_leaves_the_earlier_version_in_use(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    first = commit_version(store)
    remaining_writes = iter(range(num_writes))

    def write_or_be_killed(path: Path, document: Any) -> None:
        if next(remaining_writes, None) is None:
            raise KeyboardInterrupt
        write_atomically(path, document)

    monkeypatch.setattr("pipeline.runs.version_store.write_atomically", write_or_be_killed)
    with contextlib.suppress(KeyboardInterrupt):
        commit_version(store)

    names = [first.name, "0002-abcdef01"]
    assert current_version(store).name == (names[1] if num_writes == 2 else names[0])
    assert store.complete() == names[: 1 + num_writes]


def test_a_folder_that_cannot_be_listed_is_an_error(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it seemed to be empty, the files of its versions on object storage would be unused."""
    commit_version(store)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", fail)
    monkeypatch.setattr(os, "listdir", fail)

    with pytest.raises(OSError, match="Input/output error"):
        store.complete()


def test_versions_are_ordered_by_number(store: StageStore) -> None:
    (store.folder / "9998-00000000").mkdir(parents=True)
    commit_version(store)
    commit_version(store)
    for version_number in (10001, 10002):
        own_folders.make(store.folder / f"{version_number}-11111111")

    assert store.complete() == ["9999-abcdef01", "10000-abcdef01"]
    assert [path.name for path in store.unfinished()] == ["10002-11111111", "10001-11111111"]


def test_create_removes_unfinished_versions_and_no_finished_ones(store: StageStore) -> None:
    finished = commit_version(store)
    unfinished = create_version(store)

    following = create_version(store)

    assert not unfinished.exists()
    assert (unfinished.name, following.name) == ("0002-abcdef01", "0003-abcdef01")
    assert finished.folder.exists()


def test_a_version_without_pointer_is_not_in_use(store: StageStore) -> None:
    first = commit_version(store)
    (create_version(store) / "manifest.json").write_text('{"number": 2}')

    assert store.current() == first
    assert store.next_folder(DIGEST).name == "0003-abcdef01"


def test_recovery_puts_the_newest_complete_version_in_use(store: StageStore) -> None:
    first = commit_version(store)
    second = commit_version(store)

    store.point_to(first.name)
    assert store.recovered() == second == store.current()

    store.pointer.unlink()
    assert store.recovered() == second == store.current()

    store.pointer.write_text("[]")
    assert store.recovered() == second == store.current()


@pytest.mark.parametrize("manifest", ["{}", "{", '{"manifest_version": 1}'])
def test_recovery_passes_over_versions_that_cannot_be_used(
    store: StageStore, manifest: str
) -> None:
    version = commit_version(store)
    (create_version(store) / "manifest.json").write_text(manifest)
    assert store.recovered() == version

    folder_of_somebody_else = store.folder / "0009-abcdef01"
    folder_of_somebody_else.mkdir()
    text = (version.folder / "manifest.json").read_text()
    (folder_of_somebody_else / "manifest.json").write_text(text)
    assert store.recovered() == version


def test_recovery_names_the_damage_if_no_version_is_left(store: StageStore) -> None:
    version = commit_version(store)
    (version.folder / "manifest.json").write_text("{}")

    with pytest.raises(RunFolderError, match="'manifest_version' is missing"):
        store.recovered()


def test_a_version_of_earlier_code_is_not_in_use(store: StageStore) -> None:
    version = commit_version(store)
    (version.folder / "manifest.json").write_text('{"manifest_version": 1}')

    assert store.current() is None


FOLDERS_OF_USERS = [
    "2026-11-21-my-notes",
    "0007-deadbeef",
    "0001-abcdef01-backup",
    "\u00b2-x",
    "12",
    "0008-DEADBEEF",
]


@pytest.mark.parametrize("name", FOLDERS_OF_USERS)
def test_folders_of_users_stay(store: StageStore, name: str) -> None:
    version = commit_version(store)
    (store.folder / name).mkdir()
    (store.folder / name / "notes").write_text("mine")

    create_version(store)
    store.remove_unfinished()

    assert (store.folder / name / "notes").read_text() == "mine"
    assert store.unfinished() == []
    assert store.complete() == [version.name]


def test_the_name_of_a_broken_link_is_not_used(store: StageStore) -> None:
    store.folder.mkdir()
    # As of an archive that is not mounted.
    (store.folder / "0003-abcdef01").symlink_to(store.folder / "nowhere")

    assert create_version(store).name == "0004-abcdef01"


def test_links_to_versions_are_read_and_not_removed(store: StageStore, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()

    def move_to_archive(folder: Path) -> None:
        folder.rename(archive / folder.name)
        folder.symlink_to(archive / folder.name)

    complete = commit_version(store)
    move_to_archive(complete.folder)
    unfinished = create_version(store)
    move_to_archive(unfinished)

    assert current_version(store) == complete
    create_version(store)
    store.remove_unfinished()
    store.discard(unfinished)

    assert {path.name for path in archive.iterdir()} == {complete.name, unfinished.name}
    assert (archive / unfinished.name / "data").exists()


def test_only_readable_models_that_are_not_withdrawn_count_as_promoted(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "hlf")
    first, second, third = (
        registry.commit(create_version(registry), example_model_manifest("hlf")) for _ in range(3)
    )
    registry.withdraw(third, "2026-01-02T00:00:00+00:00")
    (second.folder / "manifest.json").write_text("{}")
    registry.pointer.unlink()

    assert registry.promoted() == [first.name]
    assert registry.recovered() == first


def test_a_new_file_that_equals_a_damaged_one_has_its_own_digest(store: StageStore) -> None:
    first = commit_version(store)
    (first.folder / "data").write_text("replaced")
    folder = create_version(store)
    (folder / "data").write_text("replaced")

    second = store.commit(folder, example_manifest("ingest"))

    assert second.verified() == second
