"""Secrets of URLs and settings: absent from the run folder and from all messages."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import SAMPLES, invoke, pipeline, small_config
from faulty_server import FaultyServer

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

PASSWORD, TOKEN, KEY = "hush-1b2c", "hush-3d4e", "hush-5f6a"
SECRETS = (PASSWORD, TOKEN, KEY)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    """A server of one file of each sample."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name in ("qcd", "ttbar", "wjets"):
        shutil.copy(SAMPLES / f"{name}_13TeV_PU20_0.root", folder / f"{name}.root")
    started = FaultyServer(folder)
    thread = threading.Thread(target=started.serve_forever, daemon=True)
    thread.start()
    yield started
    started.shutdown()
    started.server_close()


def has_secret(text: str) -> bool:
    return any(secret in text for secret in SECRETS)


def files_with_secrets(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if has_secret(path.read_bytes().decode("latin-1"))]


def test_no_file_and_no_message_holds_a_secret(tmp_path: Path, server: FaultyServer) -> None:
    address = server.url.replace("http://", f"http://me:{PASSWORD}@")
    samples = [
        # A sample that is called like a secret: its counts are read again.
        {"name": f"{name}-token", "label": label, "files": [f"{address}/{name}.root?token={TOKEN}"]}
        for label, name in enumerate(("qcd", "ttbar", "wjets"))
    ]
    spark = {"master": "local[2]", "conf": {"spark.hadoop.fs.s3a.secret.key": KEY}}
    report = {"title": "Jets as tokens: a first look", "sample_note": "technical sample"}
    config = small_config(tmp_path, SAMPLES, samples=samples, spark=spark, report=report)
    passwords = f'"spark.my.password": "a,{PASSWORD} b,{TOKEN}", "spark.my.secret.key": "{KEY}"'
    with_passwords = ("--config", config, "--set", f"spark.conf={{{passwords}}}")
    with_token = ("--config", config, "--set", f"spark.conf={{spark.a.token: {TOKEN}}}")
    with_wrong_type = ("--config", config, "--set", f"spark.conf={{a.token: [{TOKEN}]}}")
    with_variable = ("--set", f"train.launcher_args=[-x,MY_TOKEN={TOKEN}]")

    run = pipeline("run", *with_passwords, figures=False)
    planned = invoke("plan", *with_passwords)
    promoted = invoke("promote", *with_passwords)
    ingested = invoke("ingest", *with_token)
    (server.folder / "qcd.root").write_bytes(b"no ROOT file any more, and long enough to be read")
    mistaken = invoke("plan", *with_wrong_type)
    refused = invoke("plan", *with_passwords, *with_variable)
    failed = invoke("ingest", "--debug", "--config", config)

    assert run.returncode == 0, run.stderr
    assert planned.exit_code == 0, planned.stderr
    assert "stale" not in planned.stdout + planned.stderr
    assert promoted.exit_code == 0, promoted.stderr
    assert "up to date" in ingested.stderr
    assert mistaken.exit_code == 2
    assert "give its name alone (-x MY_TOKEN)" in refused.stderr
    assert failed.exit_code == 1
    assert "is not a ROOT file" in failed.stderr
    assert "***" in failed.stderr

    assert list((tmp_path / "run" / "registry").rglob("run.json"))
    assert files_with_secrets(tmp_path / "run") == []
    for result in (run, planned, promoted, ingested, mistaken, refused, failed):
        assert not has_secret(result.stdout)
        assert not has_secret(result.stderr)
