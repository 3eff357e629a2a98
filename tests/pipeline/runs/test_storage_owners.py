"""Outputs on object storage: another writer is refused, and removes nothing."""

from __future__ import annotations

import shutil
from io import StringIO
from pathlib import Path

import pytest
from published_by_hand import example_manifest
from rich.console import Console
from stages_in_process import run_stages
from stored_sites import Site, folder_of

from hep_core.storage import as_path
from pipeline.commands.clean import clean
from pipeline.commands.status import verify
from pipeline.config import load_config
from pipeline.errors import StorageInUseError
from pipeline.run_folder import RunFolder
from pipeline.runs.store import StageStore

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("use_server")]


def test_another_run_folder_is_refused_before_it_writes(site: Site, remote: Path) -> None:
    run_stages(remote, "ingest")
    objects = site.objects()

    message = rf"{site.storage}/ingest holds 0001.*which this run folder does not know"
    with pytest.raises(StorageInUseError, match=message):
        run_stages(site.config("other", site.storage), "ingest")

    assert site.objects() == objects
    assert not list((site.folder / "other" / "ingest").glob("0*"))


def test_the_second_of_two_first_writers_loses_the_conditional_request(site: Site) -> None:
    """They begin at once, and neither sees the other in a list."""
    storage = as_path(site.storage)
    first = StageStore(site.folder / "one", "ingest", storage=storage)
    second = StageStore(site.folder / "two", "ingest", storage=storage)
    first_folder, second_folder = first.next_folder("a" * 8), second.next_folder("b" * 8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.runs.object_store.ObjectStore._owner", lambda _: "")
        patch.setattr("pipeline.runs.object_store.ObjectStore.sizes", lambda _: {})
        first.create(first_folder)
        (first.data_folder(first_folder) / "events" / "a.parquet").write_bytes(b"one")
        with pytest.raises(StorageInUseError, match="the same `storage` was faster"):
            second.create(second_folder)
    second.discard(second_folder)
    version = first.commit(first_folder, example_manifest("ingest"))

    assert list((site.folder / "two" / "ingest").glob("0*")) == []
    assert site.objects() == {
        "ingest/made-by-hep-pipeline",
        f"ingest/{first_folder.name}/events/a.parquet",
    }
    assert [file.path for file in version.files] == ["events/a.parquet"]


def test_an_older_copy_of_the_run_folder_is_another_writer(site: Site, remote: Path) -> None:
    copied = site.config("copied", site.storage)
    run_stages(remote, "ingest")
    shutil.copytree(site.folder / "remote", site.folder / "copied")
    run_stages(remote, "ingest", force=True)
    objects = site.objects()

    with pytest.raises(StorageInUseError, match="another run folder writes there"):
        run_stages(copied, "ingest", force=True)
    clean(folder_of(copied), 1)

    assert site.objects() == objects
    assert verify(folder_of(remote)) == []


def test_a_copy_at_the_same_path_on_another_machine_removes_nothing(
    site: Site, remote: Path
) -> None:
    run_dir = site.folder / "remote"
    run_stages(remote, "ingest")
    shutil.copytree(run_dir, site.folder / "copy")
    run_stages(remote, "ingest", force=True)
    objects = site.objects()

    # The other machine has the copy at the path of the run folder, which is not there.
    run_dir.rename(site.folder / "elsewhere")
    (site.folder / "copy").rename(run_dir)
    messages = StringIO()
    clean(RunFolder(load_config(str(remote)), Console(file=messages, width=200)), 1)
    with pytest.raises(StorageInUseError, match="such as a copy of this one"):
        run_stages(remote, "ingest", force=True)

    assert f"note: nothing of {site.storage}/ingest is removed: another" in messages.getvalue()
    assert site.objects() == objects
    run_dir.rename(site.folder / "copy")
    (site.folder / "elsewhere").rename(run_dir)
    assert verify(folder_of(remote)) == []
    run_stages(remote, "ingest", force=True)
