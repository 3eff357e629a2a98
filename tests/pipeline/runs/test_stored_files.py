"""Outputs on object storage: stages write there what they write to disk, whatever is killed or
comes between."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
from pipeline.commands.status import verify
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
def here(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
        """A file with events that no other has; its UUID, and so the splits, are the same every time."""
        sample, number = name.split("_")
        offset = 100 * NAMES.index(sample) + 1000 * int(number)
        events = [
            event_row(met=float(offset + n), electrons=[lepton(30.0 + n, 0.1, 0)])
            for n in range(40)
        ]
        write_sample_file(self.folder / "data" / f"{name}.root", distinct(events))

    def config(self, name: str, storage: str | None = None, **changes: Any) -> Path:
        """A config with the run folder `name`."""
        samples = [
            {"name": name, "label": label, "files": [str(self.folder / "data" / f"{name}_*.root")]}
            for label, name in enumerate(NAMES)
        ]
        document = {
            "run_dir": str(self.folder / name),
            "storage": storage,
            "samples": samples,
            "classes": CLASSES,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(write_yaml({**document, "features": {"feed_workers": 2}, **changes}))
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
    return {
        f"{stage}/{file.path}": "" if file.path == "dataset.json" else file.content
        for stage in STAGES
        for file in current(config, stage).files
    }


def named(config: Path) -> set[str]:
    """Objects that the versions in use need: files, kernel outputs, and the claim of each stage."""
    actual: set[str] = set()
    storage = load_config(str(config)).storage
    for stage in STAGES:
        version = current(config, stage)
        files = [str(file.location(version.folder)) for file in version.files if file.lies_in]
        kernels = version.manifest.counters.get("kernel_outputs", [])
        files += [
            f"{storage}/features/kernels/{e['lies_in']}/{Path(e['name']).stem}.arrow"
            for e in kernels
        ]
        actual |= {path.removeprefix(f"{storage}/") for path in files} | {
            f"{stage}/made-by-hep-pipeline"
        }
    return actual


def test_the_same_dataset_as_on_disk(site: Site) -> None:
    local, remote = site.config("local"), site.config("remote", site.storage)
    for config in (local, remote):
        run_stages(config, *STAGES)
    assert contents(remote) == contents(local)
    assert site.objects() == named(remote)
    parquet = [path for path in contents(remote) if path.endswith((".parquet", ".npy"))]
    assert {
        f"{stage}/{file.path}"
        for stage in STAGES
        for file in current(remote, stage).files
        if file.lies_in
    } == set(parquet)
    assert not [
        *Path(site.folder / "remote").rglob("*.parquet"),
        *(site.folder / "remote").rglob("*.arrow"),
    ]
    # Features do not become stale by the place of the events.
    assert "features: up to date" in run_stages(site.config("remote"), "features")
    for secret in ("AWS_", "aws_secret"):
        assert secret not in (current(remote, "ingest").folder / "manifest.json").read_text()


def test_nights_reuse_parts_by_name_and_clean_removes_what_nothing_names(site: Site) -> None:
    remote = site.config("remote", site.storage)
    run_stages(remote, *STAGES)
    first = site.objects()
    for index in (1, 2):
        site.arrive(f"qcd_{index}")
        stages = run_stages(remote, *STAGES)
        assert "1 files read" in stages
        assert f"kernels of {2 + index} of {3 + index} parts reused" in stages
    assert {path for path in first if "/events/" in path} < site.objects()
    site.server.files.pipe("bucket/elsewhere", b"mine")
    site.server.files.pipe(f"{site.storage}/ingest/notes.txt", b"mine")
    assert verify(folder_of(remote)) == []
    objects_before = site.objects()
    would = clean(folder_of(remote), 1, dry_run=True)
    assert site.objects() == objects_before
    assert clean(folder_of(remote), 1) == would
    assert site.objects() == named(remote) | {"ingest/notes.txt"}
    assert clean(folder_of(remote), 1) == []
    assert verify(folder_of(remote)) == []
    assert "up to date" in run_stages(remote, *STAGES)
    local = site.config("local")
    run_stages(local, *STAGES)
    assert contents(remote) == contents(local)
    # Without the file, its parts go with the next version.
    (site.folder / "data" / "qcd_1.root").unlink()
    run_stages(remote, *STAGES)
    clean(folder_of(remote), 1)
    assert site.objects() == named(remote) | {"ingest/notes.txt"}
    assert current(remote, "ingest").name not in {
        file.lies_in[-13:] for file in current(remote, "ingest").files
    }
    site.arrive("qcd_3")
    run_stages(remote, *STAGES)
    clean(folder_of(remote), 1)
    run_stages(remote, *STAGES, force=True)
    clean(folder_of(remote), 1)
    assert site.objects() == named(remote) | {"ingest/notes.txt"}


def test_objects_that_a_server_keeps_end_the_removal(site: Site) -> None:
    remote = site.config("remote", site.storage)
    run_stages(remote, "ingest")
    run_stages(remote, "ingest", force=True)
    objects_before = site.objects()

    async def refused(*_: object, **__: object) -> list[str]:
        # s3fs does not read the answer, which has "AccessDenied" for each object.
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("s3fs.S3FileSystem._bulk_delete", refused)
        with pytest.raises(RefusedFileError, match=r"cannot be removed.*s3:DeleteObject"):
            clean(folder_of(remote), 1)
    assert site.objects() == objects_before
    clean(folder_of(remote), 1)
    run_stages(remote, *STAGES, force=True)
    clean(folder_of(remote), 1)
    assert site.objects() == named(remote)


def test_lost_and_changed_objects_are_seen(site: Site) -> None:
    remote = site.config("remote", site.storage)
    run_stages(remote, *STAGES)
    expected = contents(remote)
    lost, changed = sorted(path for path in site.objects() if path.endswith(".parquet"))[:2]
    site.server.files.rm(f"{site.storage}/{lost}")
    complete = site.server.files.cat(f"{site.storage}/{changed}")
    site.server.files.pipe(f"{site.storage}/{changed}", complete[:-9] + b"x" + complete[-8:])
    assert verify(folder_of(remote)) == [f"{site.storage}/{path}" for path in (lost, changed)]
    stages = run_stages(remote, "features")
    reasons = [f"output is gone or damaged: {path.split('/', 2)[2]}" for path in (lost, changed)]
    assert f"features: {'; '.join(reasons)}\n" in stages
    run_stages(remote, *STAGES, force=True)
    assert contents(remote) == expected
    assert verify(folder_of(remote)) == []


def test_another_run_folder_is_refused_before_it_writes(site: Site) -> None:
    run_stages(site.config("remote", site.storage), "ingest")
    objects_before = site.objects()
    second = site.config("other", site.storage)
    with pytest.raises(
        StorageInUseError,
        match=rf"{site.storage}/ingest holds 0001.*which this run folder does not know",
    ):
        run_stages(second, "ingest")
    assert site.objects() == objects_before
    assert not list((site.folder / "other" / "ingest").glob("0*"))


def test_the_second_of_two_first_writers_loses_the_conditional_request(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin at once, and neither sees the other in a list."""
    first, two = (
        StageStore(site.folder / name, "ingest", storage=as_path(site.storage))
        for name in ("one", "two")
    )
    monkeypatch.setattr("pipeline.runs.object_store.ObjectStore._owner", lambda _: "")
    monkeypatch.setattr("pipeline.runs.object_store.ObjectStore.sizes", lambda _: {})
    folder, second = first.next_folder("a" * 8), two.next_folder("b" * 8)
    first.create(folder)
    (first.data_folder(folder) / "events" / "a.parquet").write_bytes(b"one")
    with pytest.raises(StorageInUseError, match="another run with the same `storage` was faster"):
        two.create(second)
    two.discard(second)
    version = first.commit(folder, example_manifest("ingest"))
    assert list((site.folder / "two" / "ingest").glob("0*")) == []
    assert site.objects() == {
        "ingest/made-by-hep-pipeline",
        f"ingest/{folder.name}/events/a.parquet",
    }
    assert [file.path for file in version.files] == ["events/a.parquet"]


def test_an_older_copy_of_the_run_folder_is_another_writer(site: Site) -> None:
    remote, copied = site.config("remote", site.storage), site.config("copied", site.storage)
    run_stages(remote, "ingest")
    shutil.copytree(site.folder / "remote", site.folder / "copied")
    run_stages(remote, "ingest", force=True)
    objects_before = site.objects()
    with pytest.raises(StorageInUseError, match="another run folder writes there"):
        run_stages(copied, "ingest", force=True)
    clean(folder_of(copied), 1)
    assert site.objects() == objects_before
    assert verify(folder_of(remote)) == []


@pytest.mark.minutes
def test_killed_at_any_request_nothing_half_is_visible_and_the_next_run_finishes(
    site: Site,
) -> None:
    expected, remote = site.config("local"), site.config("remote", site.storage)
    run_stages(expected, *STAGES)
    random = np.random.default_rng(20)
    child = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).parents[2] / "helpers" / "stages_in_process.py"),
            str(remote),
            str(site.folder),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    def ran(stage: str, request: int) -> list[str]:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{stage} {request}\n")
        child.stdin.flush()
        return child.stdout.readline().split()

    for stage in STAGES:
        # As many requests as an undisturbed run has; the next ones make the version again.
        word, index = ran(stage, -1)
        assert word == "done"
        store = folder_of(remote).store(stage)
        for request in random.choice(int(index), size=3, replace=False).tolist():
            current_before = store.current()
            assert ran(stage, request) == ["ended", "-9"]
            assert store.current() == current_before
            assert verify(folder_of(remote)) == []
        assert ran(stage, -1)[0] == "done"
    child.communicate(timeout=60)
    assert contents(remote) == contents(expected)
    clean(folder_of(remote), 1)
    assert site.objects() == named(remote)


def test_a_missing_bucket_and_refused_access_say_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefusedFileError, match=r"s3://nobucket/x/ingest: .*bucket does not exist"):
        run_stages(site.config("remote", "s3://nobucket/x"), "ingest")

    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr("s3fs.S3FileSystem._call_s3", refuse)
    forget_connections()
    with pytest.raises(RefusedFileError, match=rf"{site.storage}/ingest: the server refuses"):
        run_stages(site.config("remote", site.storage), "ingest")
    assert not list((site.folder / "remote" / "ingest").glob("0*"))


@pytest.mark.parametrize(
    "storage",
    [
        "s3://bucket",
        "s3://key:hush@bucket/x",
        "s3://bucket/a*",
        "s3://bucket/../x",
    ],
)
def test_other_addresses_than_a_prefix_of_a_bucket_are_refused(site: Site, storage: str) -> None:
    with pytest.raises(ConfigError, match=r"storage: .*write s3://bucket/prefix") as raised:
        load_config(str(site.config("remote", storage)))
    assert "hush" not in str(raised.value)
