"""Outputs on object storage: stages write there what they write to disk, also after a kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analyses import write_sample_file
from event_rows import distinct, event_row, lepton
from published_by_hand import example_manifest
from rich.console import Console
from s3_server import Server, forget_connections, lead_to, s3_server
from stages_in_process import run_stages, without_spark

from hep_core.input_errors import RefusedFileError
from hep_core.storage import as_path
from pipeline.commands.clean import clean
from pipeline.commands.status import changed_cache, verify
from pipeline.config import load_config
from pipeline.configuration.yaml_text import write_yaml
from pipeline.errors import ConfigError, StorageInUseError
from pipeline.run_folder import RunFolder
from pipeline.runs.store import StageStore
from pipeline.runs.version import Version

pytestmark = pytest.mark.slow

NAMES = ("qcd", "ttbar", "wjets")
CLASSES = ["QCD", "ttbar", "W+jets"]
STAGES = ("ingest", "features")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(autouse=True)
def use_server(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lead_to(server.url, monkeypatch)
    (tmp_path / "scratch").mkdir()
    without_spark(monkeypatch, tmp_path / "scratch")


class Site:
    """Input files, and run folders over them, on disk or on the server."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.storage = f"s3://bucket/{folder.name}"
        (folder / "data").mkdir()
        for name in NAMES:
            self.arrive(f"{name}_0")

    def arrive(self, name: str) -> None:
        """Write a file with events of its own; its UUID, and so the splits, are always the same."""
        sample, index = name.split("_")
        offset = 100 * NAMES.index(sample) + 1000 * int(index)
        events = []
        for n in range(40):
            electron = lepton(30.0 + n, 0.1, 0)
            events.append(event_row(met=float(offset + n), electrons=[electron]))
        write_sample_file(self.folder / "data" / f"{name}.root", distinct(events))

    def config(self, name: str, storage: str | None = None, **changes: Any) -> Path:
        """A config with the run folder `name`."""
        samples = []
        for label, sample in enumerate(NAMES):
            files = [str(self.folder / "data" / f"{sample}_*.root")]
            samples.append({"name": sample, "label": label, "files": files})
        document = {
            "run_dir": str(self.folder / name),
            "storage": storage,
            "samples": samples,
            "classes": CLASSES,
            "features": {"feed_workers": 2},
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(write_yaml(document | changes))
        return path

    def objects(self) -> set[str]:
        """Names of all objects of the storage."""
        return self.server.objects(self.storage.removeprefix("s3://"))


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    return Site(tmp_path, server)


def folder_of(config: Path) -> RunFolder:
    return RunFolder(load_config(str(config)), Console(quiet=True))


def current(config: Path, stage: str) -> Version:
    version = folder_of(config).store(stage).current()
    assert version is not None
    return version


def contents(config: Path) -> dict[str, str]:
    """Digests of the content of all files of both stages."""
    digests = {}
    for stage in STAGES:
        for file in current(config, stage).files:
            # Its content names the run folder.
            digest = "" if file.path == "dataset.json" else file.content
            digests[f"{stage}/{file.path}"] = digest
    return digests


def needed_objects(config: Path) -> set[str]:
    """Objects that the versions in use need: files, kernel outputs, and the claim of each stage."""
    storage = load_config(str(config)).storage
    objects: set[str] = set()
    for stage in STAGES:
        version = current(config, stage)
        files = [str(file.location(version.folder)) for file in version.files if file.lies_in]
        for output in version.manifest.counters.get("kernel_outputs", []):
            name = Path(output["name"]).with_suffix(".arrow")
            files.append(f"{storage}/features/kernels/{output['lies_in']}/{name}")
        objects |= {path.removeprefix(f"{storage}/") for path in files}
        objects.add(f"{stage}/made-by-hep-pipeline")
    return objects


@pytest.fixture
def remote(site: Site) -> Path:
    """A config of the run folder `remote`, whose outputs go to the server."""
    return site.config("remote", site.storage)


def test_the_dataset_is_the_same_as_on_disk(site: Site, remote: Path) -> None:
    local = site.config("local")

    run_stages(local, *STAGES)
    run_stages(remote, *STAGES)

    assert contents(remote) == contents(local)
    assert site.objects() == needed_objects(remote)
    for stage in STAGES:
        for file in current(remote, stage).files:
            assert bool(file.lies_in) == file.path.endswith((".parquet", ".npy"))
    assert not [*(site.folder / "remote").rglob("*.parquet")]
    assert not [*(site.folder / "remote").rglob("*.arrow")]
    manifest_text = (current(remote, "ingest").folder / "manifest.json").read_text()
    assert "aws_" not in manifest_text.lower()
    # Features do not become stale by the location of the events.
    assert "features: up to date" in run_stages(site.config("remote"), "features")


def test_nights_reuse_parts_by_name(site: Site, remote: Path) -> None:
    run_stages(remote, *STAGES)
    first_objects = site.objects()

    for index in (1, 2):
        site.arrive(f"qcd_{index}")
        output = run_stages(remote, *STAGES)
        assert "1 files read" in output
        assert f"kernels of {2 + index} of {3 + index} parts reused" in output

    assert {path for path in first_objects if "/events/" in path} < site.objects()
    assert verify(folder_of(remote)) == []
    local = site.config("local")
    run_stages(local, *STAGES)
    assert contents(remote) == contents(local)


def test_clean_removes_objects_that_no_version_in_use_needs(site: Site, remote: Path) -> None:
    run_stages(remote, *STAGES)
    site.arrive("qcd_1")
    run_stages(remote, *STAGES)
    site.server.files.pipe("bucket/elsewhere", b"mine")
    site.server.files.pipe(f"{site.storage}/ingest/notes.txt", b"mine")
    objects = site.objects()

    planned = clean(folder_of(remote), 1, dry_run=True)
    assert site.objects() == objects

    assert clean(folder_of(remote), 1) == planned
    assert site.objects() == needed_objects(remote) | {"ingest/notes.txt"}
    assert clean(folder_of(remote), 1) == []
    assert verify(folder_of(remote)) == []
    assert changed_cache(folder_of(remote)) == ""
    assert "up to date" in run_stages(remote, *STAGES)


def test_parts_of_a_removed_file_go_with_the_next_version(site: Site, remote: Path) -> None:
    site.arrive("qcd_1")
    run_stages(remote, *STAGES)
    (site.folder / "data" / "qcd_1.root").unlink()

    run_stages(remote, *STAGES)
    clean(folder_of(remote), 1)

    assert site.objects() == needed_objects(remote)
    # All parts that remain lie in the first version.
    version = current(remote, "ingest")
    assert not any(file.lies_in.endswith(version.name) for file in version.files)

    run_stages(remote, *STAGES, force=True)
    clean(folder_of(remote), 1)
    assert site.objects() == needed_objects(remote)


def test_objects_that_a_server_does_not_remove_end_the_removal(site: Site, remote: Path) -> None:
    run_stages(remote, "ingest")
    run_stages(remote, "ingest", force=True)
    objects = site.objects()

    async def ignore_removal(*_: object, **__: object) -> list[str]:
        # s3fs does not read the answer, which has "AccessDenied" for each object.
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("s3fs.S3FileSystem._bulk_delete", ignore_removal)
        with pytest.raises(RefusedFileError, match=r"cannot be removed.*s3:DeleteObject"):
            clean(folder_of(remote), 1)
    assert site.objects() == objects

    clean(folder_of(remote), 1)
    run_stages(remote, *STAGES, force=True)
    clean(folder_of(remote), 1)
    assert site.objects() == needed_objects(remote)


def test_lost_and_changed_objects_are_noticed(site: Site, remote: Path) -> None:
    run_stages(remote, *STAGES)
    expected = contents(remote)
    lost, changed = sorted(path for path in site.objects() if path.endswith(".parquet"))[:2]
    files = site.server.files
    files.rm(f"{site.storage}/{lost}")
    file_bytes = files.cat(f"{site.storage}/{changed}")
    files.pipe(f"{site.storage}/{changed}", file_bytes[:-9] + b"x" + file_bytes[-8:])

    damaged = verify(folder_of(remote))
    output = run_stages(remote, "features")

    assert damaged == [f"{site.storage}/{lost}", f"{site.storage}/{changed}"]
    reasons = [f"output is gone or damaged: {path.split('/', 2)[2]}" for path in (lost, changed)]
    assert f"features: {'; '.join(reasons)}\n" in output

    run_stages(remote, *STAGES, force=True)
    assert contents(remote) == expected
    assert verify(folder_of(remote)) == []


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


@pytest.mark.minutes
def test_killed_at_any_request_nothing_half_is_visible_and_the_next_run_finishes(
    site: Site, remote: Path
) -> None:
    local = site.config("local")
    run_stages(local, *STAGES)
    rng = np.random.default_rng(20)
    program = Path(__file__).parents[2] / "helpers" / "stages_in_process.py"
    child = subprocess.Popen(
        [sys.executable, str(program), str(remote), str(site.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    def run_killed_at(stage: str, request: int) -> list[str]:
        """Run a stage that is killed at a request; -1: at none. Returns how it ended."""
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{stage} {request}\n")
        child.stdin.flush()
        return child.stdout.readline().split()

    for stage in STAGES:
        outcome, num_requests = run_killed_at(stage, -1)
        assert outcome == "done"
        store = folder_of(remote).store(stage)
        for request in rng.choice(int(num_requests), size=3, replace=False).tolist():
            version = store.current()
            assert run_killed_at(stage, request) == ["ended", "-9"]
            assert store.current() == version
            assert verify(folder_of(remote)) == []
            assert changed_cache(folder_of(remote)) == ""
        assert run_killed_at(stage, -1)[0] == "done"
    child.communicate(timeout=60)
    assert contents(remote) == contents(local)
    clean(folder_of(remote), 1)
    assert site.objects() == needed_objects(remote)


def test_a_missing_bucket_is_named(site: Site) -> None:
    with pytest.raises(RefusedFileError, match=r"s3://nobucket/x/ingest: .*bucket does not exist"):
        run_stages(site.config("remote", "s3://nobucket/x"), "ingest")


def test_refused_access_is_named(site: Site, remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr("s3fs.S3FileSystem._call_s3", refuse)
    forget_connections()

    with pytest.raises(RefusedFileError, match=rf"{site.storage}/ingest: the server refuses"):
        run_stages(remote, "ingest")

    assert not list((site.folder / "remote" / "ingest").glob("0*"))


@pytest.mark.parametrize(
    "storage", ["s3://bucket", "s3://key:hush@bucket/x", "s3://bucket/a*", "s3://bucket/../x"]
)
def test_other_addresses_than_a_prefix_of_a_bucket_are_refused(site: Site, storage: str) -> None:
    with pytest.raises(ConfigError, match=r"storage: .*write s3://bucket/prefix") as caught:
        load_config(str(site.config("remote", storage)))

    assert "hush" not in str(caught.value)
