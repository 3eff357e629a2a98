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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultyServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    for name in ("qcd", "ttbar", "wjets"):
        shutil.copy(SAMPLES / f"{name}_13TeV_PU20_0.root", folder / f"{name}.root")
    made = FaultyServer(folder)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def leaks(folder: Path, *outputs: str) -> list[str]:
    secrets = [secret.encode() for secret in (PASSWORD, TOKEN, KEY)]
    results = [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(s in path.read_bytes() for s in secrets)
    ]
    return results + [
        message for message in outputs if any(secret.decode() in message for secret in secrets)
    ]


def test_nothing_that_is_written_or_said_holds_a_secret(
    tmp_path: Path, server: FaultyServer
) -> None:
    address = server.url.replace("http://", f"http://me:{PASSWORD}@")
    samples = [
        # One that is called like a secret: its counts are read again.
        {"name": f"{name}-token", "label": label, "files": [f"{address}/{name}.root?token={TOKEN}"]}
        for label, name in enumerate(("qcd", "ttbar", "wjets"))
    ]
    spark = {"master": "local[2]", "conf": {"spark.hadoop.fs.s3a.secret.key": KEY}}
    report = {"title": "Jets as tokens: a first look", "sample_note": "technical sample"}
    config = small_config(tmp_path, SAMPLES, samples=samples, spark=spark, report=report)
    conf = f'spark.conf={{"spark.my.password": "a,{PASSWORD} b,{TOKEN}", "spark.my.secret.key": "{KEY}"}}'
    command = ["--config", config, "--set", conf]
    result = pipeline("run", *command, figures=False)
    assert result.returncode == 0, result.stderr
    planned = invoke("plan", *command)
    assert planned.exit_code == 0, planned.stderr
    assert "stale" not in planned.stdout + planned.stderr
    promoted = invoke("promote", *command)
    assert promoted.exit_code == 0, promoted.stderr
    repeated = invoke(
        "ingest", "--config", config, "--set", f"spark.conf={{spark.a.token: {TOKEN}}}"
    )
    assert "up to date" in repeated.stderr
    (server.folder / "qcd.root").write_bytes(b"no ROOT file any more, and long enough to be read")
    mistaken = invoke("plan", "--config", config, "--set", f"spark.conf={{a.token: [{TOKEN}]}}")
    assert mistaken.exit_code == 2
    refused = invoke("plan", *command, "--set", f"train.launcher_args=[-x,MY_TOKEN={TOKEN}]")
    assert "give its name alone (-x MY_TOKEN)" in refused.stderr
    failed = invoke("ingest", "--debug", "--config", config)
    assert failed.exit_code == 1
    assert "is not a ROOT file" in failed.stderr
    runs = (result, planned, promoted, repeated, mistaken, refused, failed)
    outputs = [stream for run in runs for stream in (run.stdout, run.stderr)]
    assert list((tmp_path / "run" / "registry").rglob("run.json"))
    assert leaks(tmp_path / "run", *outputs) == []
    assert "***" in failed.stderr
