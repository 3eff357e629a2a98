"""Outputs on object storage: stages write there what they write to disk, also after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from s3_server import forget_connections
from stages_in_process import run_stages
from stored_sites import STAGES, Site, contents, current, folder_of, needed_objects

from hep_core.input_errors import RefusedFileError
from pipeline.commands.clean import clean
from pipeline.commands.status import changed_cache, verify
from pipeline.config import load_config
from pipeline.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("use_server")]


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
