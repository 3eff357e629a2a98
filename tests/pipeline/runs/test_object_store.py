"""The owner of a folder on object storage, and the files there; a local folder stands for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Barrier

import pytest

from pipeline.errors import StorageInUseError
from pipeline.runs import object_store
from pipeline.runs.object_store import ObjectStore
from pipeline.runs.own_folders import MARKER


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


@pytest.mark.parametrize(("marker", "is_owned"), [("last", True), ("new", True), ("other", False)])
def test_markers_of_earlier_releases_are_understood(
    tmp_path: Path, storage: Path, marker: str, is_owned: bool
) -> None:
    """They held random words, of which the run folder knew the last and the new ones."""
    (storage / MARKER).write_text(marker)
    tokens = {str(storage): ["last", "new"]}
    (tmp_path / "storage.json").write_text(json.dumps(tokens))

    assert ObjectStore(storage, tmp_path).is_owned() is is_owned
