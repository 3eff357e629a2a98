"""The owner of a folder on object storage, and the files there; a local folder stands for it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from published_by_hand import example_manifest

from pipeline.errors import StorageInUseError
from pipeline.runs import object_store
from pipeline.runs.object_store import ObjectStore
from pipeline.runs.own_folders import MARKER
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version


def test_the_footers_of_files_on_object_storage_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"events/part-{index}.parquet" for index in range(3)]
    (tmp_path / "0001-abcdef01" / "events").mkdir(parents=True)
    for path in paths:
        (tmp_path / "0001-abcdef01" / path).write_text(path)
    all_are_asked_for = Barrier(len(paths))

    def footer_of(path: Path) -> str:
        all_are_asked_for.wait(timeout=60)
        return f"footer of {path.name}"

    monkeypatch.setattr(object_store, "footer_of", footer_of)

    files = ObjectStore(tmp_path, tmp_path / "run").written(
        "0001-abcdef01", {path: f"digest of {path}" for path in paths}
    )

    assert [file.path for file in files] == paths
    assert [file.digest for file in files] == [f"digest of {path}" for path in paths]
    assert [file.footer for file in files] == [
        f"footer of part-{index}.parquet" for index in range(3)
    ]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A folder that stands for object storage."""
    folder = tmp_path / "storage"
    folder.mkdir()
    return folder


def put_object(storage: Path) -> None:
    """Write an object of a version."""
    (storage / "0001-abcdef01").mkdir()
    (storage / "0001-abcdef01" / "part.parquet").touch()


def test_a_run_folder_owns_the_storage_that_it_claims(tmp_path: Path, storage: Path) -> None:
    objects = ObjectStore(storage, tmp_path / "run")
    assert not objects.is_owned()

    objects.claim()
    put_object(storage)

    assert objects.is_owned()
    objects.claim()


def test_another_run_folder_is_refused(tmp_path: Path, storage: Path) -> None:
    ObjectStore(storage, tmp_path / "run").claim()

    with pytest.raises(StorageInUseError, match="which this run folder does not know"):
        ObjectStore(storage, tmp_path / "another").claim()


def test_objects_without_an_owner_are_refused(tmp_path: Path, storage: Path) -> None:
    put_object(storage)

    with pytest.raises(StorageInUseError, match=r"holds 0001-abcdef01/part\.parquet, which"):
        ObjectStore(storage, tmp_path / "run").claim()


def test_a_copy_of_the_owner_is_refused_while_the_owner_is_there(
    tmp_path: Path, storage: Path
) -> None:
    ObjectStore(storage, tmp_path / "run").claim()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copy = ObjectStore(storage, tmp_path / "copy")
    assert not copy.is_owned()

    shutil.rmtree(tmp_path / "run")

    assert copy.is_owned()


def swap(one: Path, other: Path) -> None:
    """Give each of two folders the path of the other."""
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)


def test_a_copy_from_before_the_last_use_is_refused_also_at_the_path_of_the_owner(
    tmp_path: Path, storage: Path
) -> None:
    """As on another machine, where the owner is not to be seen."""
    run_dir, copied_dir = tmp_path / "run", tmp_path / "copy"
    ObjectStore(storage, run_dir).claim()
    shutil.copytree(run_dir, copied_dir)
    ObjectStore(storage, run_dir).claim()

    swap(run_dir, copied_dir)

    copy, owner = ObjectStore(storage, run_dir), ObjectStore(storage, copied_dir)
    assert not copy.is_owned()
    with pytest.raises(StorageInUseError, match="such as a copy of this one"):
        copy.claim()
    owner.claim()


@pytest.mark.parametrize("num_writes", range(4))
def test_a_kill_between_the_writes_of_a_claim_leaves_the_owner(
    tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    """A claim writes the run folder, the storage, and the run folder again."""
    run_dir, copied_dir = tmp_path / "run", tmp_path / "copy"
    ObjectStore(storage, run_dir).claim()
    shutil.copytree(run_dir, copied_dir)
    writes: list[str] = []

    def count(name: str) -> None:
        if len(writes) == num_writes:
            raise KeyboardInterrupt
        writes.append(name)

    for name in ("_write_tokens", "_write_owner"):
        write = getattr(ObjectStore, name)

        def write_unless_killed(
            *arguments: object,
            name: str = name,
            write: Callable[..., None] = write,
            **options: bool,
        ) -> None:
            count(name)
            write(*arguments, **options)

        monkeypatch.setattr(ObjectStore, name, write_unless_killed)
    with contextlib.suppress(KeyboardInterrupt):
        ObjectStore(storage, run_dir).claim()
    monkeypatch.undo()

    assert writes == ["_write_tokens", "_write_owner", "_write_tokens"][:num_writes]
    assert ObjectStore(storage, run_dir).is_owned()
    ObjectStore(storage, run_dir).claim()
    assert not ObjectStore(storage, copied_dir).is_owned()


def make_version(store: StageStore, digest: str) -> Path:
    """Make a version with one object, and return its folder."""
    folder = store.next_folder(digest)
    store.create(folder)
    data_folder = store.data_folder(folder)
    data_folder.mkdir()
    (data_folder / "part.parquet").write_text(digest)
    store.commit(folder, example_manifest("ingest"))
    return folder


@pytest.fixture
def store(tmp_path: Path, storage: Path, monkeypatch: pytest.MonkeyPatch) -> StageStore:
    """The store of a stage whose objects are no Parquet."""
    monkeypatch.setattr(object_store, "footer_of", lambda _: "")
    (storage / "ingest").mkdir()
    return StageStore(tmp_path / "run", "ingest", storage=storage)


def test_a_version_is_not_committed_after_another_run_folder_has_claimed_the_storage(
    tmp_path: Path, storage: Path, store: StageStore
) -> None:
    first_folder = make_version(store, "a" * 8)
    folder = store.next_folder("b" * 8)
    store.create(folder)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    swap(tmp_path / "run", tmp_path / "copy")
    ObjectStore(storage / "ingest", tmp_path / "run" / "ingest").claim()
    swap(tmp_path / "run", tmp_path / "copy")

    with pytest.raises(StorageInUseError, match="has claimed it since"):
        store.commit(folder, example_manifest("ingest"))

    store.discard(folder)
    assert store.complete() == [first_folder.name]
    assert (storage / "ingest" / first_folder.name / "part.parquet").exists()


@pytest.mark.parametrize("use", ["commit", "removal"])
def test_a_commit_and_a_removal_leave_earlier_copies_behind(
    tmp_path: Path, storage: Path, store: StageStore, use: str
) -> None:
    folders = [make_version(store, letter * 8) for letter in "ab"]
    new_folder = store.next_folder("c" * 8)
    if use == "commit":
        store.create(new_folder)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")

    if use == "commit":
        store.commit(new_folder, example_manifest("ingest"))
    else:
        store.remove(folders[:1])

    swap(tmp_path / "run", tmp_path / "copy")
    copy = StageStore(tmp_path / "run", "ingest", storage=storage)
    copy.remove([tmp_path / "run" / "ingest" / folder.name for folder in folders])
    assert (storage / "ingest" / folders[1].name / "part.parquet").exists()


def test_a_copy_from_within_a_commit_is_left_behind(
    tmp_path: Path, storage: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the token of the commit, and the new version has no manifest there yet."""
    make_version(store, "a" * 8)
    publish = StageStore.publish

    def copy_then_publish(store: StageStore, *arguments: Any) -> Version:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        return publish(store, *arguments)

    monkeypatch.setattr(StageStore, "publish", copy_then_publish)
    new_folder = make_version(store, "b" * 8)

    swap(tmp_path / "run", tmp_path / "copy")
    copy = StageStore(tmp_path / "run", "ingest", storage=storage)
    assert [folder.name for folder in copy.unfinished()] == [new_folder.name]
    copy.remove_unfinished()
    assert (storage / "ingest" / new_folder.name / "part.parquet").exists()


def test_objects_of_a_version_newer_than_all_in_the_run_folder_are_not_unused(
    storage: Path, store: StageStore
) -> None:
    make_version(store, "a" * 8)
    for name in ("0001-bbbbbbbb", "0002-bbbbbbbb"):
        (storage / "ingest" / name).mkdir()
        (storage / "ingest" / name / "part.parquet").touch()

    assert store.unused_objects() == {"0001-bbbbbbbb": {"0001-bbbbbbbb/part.parquet": 0}}


@pytest.mark.parametrize(("marker", "is_owned"), [("last", True), ("new", True), ("other", False)])
def test_markers_of_earlier_releases_are_understood(
    tmp_path: Path, storage: Path, marker: str, is_owned: bool
) -> None:
    """They held random words, of which the run folder knew the last and the new ones."""
    (storage / MARKER).write_text(marker)
    tokens = {str(storage): ["last", "new"]}
    (tmp_path / "storage.json").write_text(json.dumps(tokens))

    assert ObjectStore(storage, tmp_path).is_owned() is is_owned
