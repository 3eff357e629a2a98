"""Inputs and outputs on servers of another host: XRootD, https with a password, S3; killed, silent and back again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from cluster_runs import Local, OnHost, Tried
from clusters import missing
from command_line import SAMPLES
from file_servers import FileServer, nginx, s3, xrootd
from network_hosts import Network
from training_runs import flat_weights
from undisturbed_run import assert_same

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

#: Within it a run gives a silent server up: four attempts for each file, several files at once [s].
PATIENCE: Final = 300.0
XROOTD: Final = "XRootD on another host"
HTTPS: Final = "nginx with https and a password on another host"
S3: Final = "S3 (moto) on another host"


@pytest.fixture
def data() -> Iterator[Path]:
    """Folder of a server, with the samples below `data/`; a server that is not root can read it."""
    with tempfile.TemporaryDirectory(prefix="hep-server-") as name:
        Path(name).chmod(0o755)
        shutil.copytree(SAMPLES, Path(name) / "data")
        yield Path(name)


def loses_its_server(runs: OnHost, server: FileServer, local: Local) -> str:
    """What a run says that cannot reach its server; it ends, and the same command works when the server is back."""
    started = time.monotonic()
    words = " ".join(runs.run("ingest", fails=True).split())
    assert time.monotonic() - started < PATIENCE
    assert server.name in words
    server.start()
    runs.run("ingest")
    assert_same(runs.version("ingest"), local.version("ingest"), "ingest", tests=[])
    return words


@pytest.mark.skipif(bool(missing("xrootd")), reason="no xrootd here (Debian: xrootd-server)")
@pytest.mark.skipif(find_spec("fsspec_xrootd") is None, reason="no client of XRootD (pip install -e '.[xrootd]')")
def test_xrootd_is_read_like_local_files_and_given_up_when_silent(
    hosts: Network, data: Path, local: Local, tmp_path: Path, tried: Tried
) -> None:
    with xrootd(hosts, 1, data) as server:
        runs = OnHost(hosts, tmp_path, samples=f"root://{server.name}//data")
        for process in server.processes():
            process.suspend()
        started = time.monotonic()
        words = " ".join(runs.run("ingest", fails=True).split())
        assert time.monotonic() - started < PATIENCE
        assert f"root://{server.name}//data/" in words
        server.kill()
        tried(XROOTD, "ingest; a server that hangs", "ends with the file's name")
        loses_its_server(runs, server, local)
        tried(XROOTD, "ingest; a server that is down and starts again", "names it; the same events")


@pytest.mark.skipif(bool(missing("nginx", "openssl")), reason="no nginx here (Debian: nginx-light, openssl)")
def test_https_with_a_password_and_a_certificate_of_our_own(
    hosts: Network, data: Path, local: Local, tmp_path: Path, tried: Tried
) -> None:
    with nginx(hosts, 1, data, "physicist", "hidden-word") as server:
        address = f"https://physicist:hidden-word@{server.name}/data"
        authority = {"SSL_CERT_FILE": str(data / "server.pem")}
        runs = OnHost(hosts, tmp_path, samples=address, env=authority)
        server.kill()
        words = [loses_its_server(runs, server, local)]
        written = [path for path in runs.run_dir.rglob("*") if path.is_file() and b"hidden-word" in path.read_bytes()]
        assert written == []
        tried(HTTPS, "ingest; a server that is down and starts again", "names it; the same events")
        for where, env, message in (
            (address, {}, "certificate"),
            (f"https://{server.name}/data", authority, "Put user name and password into the URL"),
        ):
            refused = OnHost(hosts, tmp_path, samples=where, env=env)
            words.append(" ".join(refused.run("ingest", fails=True).split()))
            assert message in words[-1]
        assert "hidden-word" not in " ".join(words)
        tried(HTTPS, "ingest; unknown certificate, no password", "each named")


def test_s3_holds_inputs_and_outputs(hosts: Network, data: Path, local: Local, tmp_path: Path, tried: Tried) -> None:
    put = f"import s3fs; s3 = s3fs.S3FileSystem(); s3.mkdir('bucket'); s3.put('{data}/data', 'bucket/', recursive=True)"
    with s3(hosts, 1, data) as server:
        command = hosts.on_host(0, sys.executable, "-c", put)
        subprocess.run(command, check=True, env={**os.environ, **server.environment})
        runs = OnHost(
            hosts, tmp_path, samples="s3://bucket/data", env=server.environment, storage="s3://bucket/outputs"
        )
        for stage in ("ingest", "features", "train"):
            runs.run(stage)
        np.testing.assert_array_equal(flat_weights(runs.version("train") / "hlf"), flat_weights(local.trained()))
        assert list(runs.run_dir.rglob("*.parquet")) == []
        tried(S3, "ingest, features, train; inputs and outputs there", "the same weights")
