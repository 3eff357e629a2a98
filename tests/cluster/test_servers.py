"""Inputs and outputs on servers of another host: XRootD, https with a password, S3; killed, silent
and back again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil
import pytest
from cluster_runs import AddRow, HostRuns, LocalResults
from clusters import missing
from command_line import SAMPLES
from finished_run import assert_same_version
from network_hosts import Network
from ranks import wait_until
from s3_server import lead_to
from training_runs import flat_weights

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

#: Within it a run gives a silent server up: four attempts for each file, several files at once [s].
PATIENCE: Final = 300.0
XROOTD: Final = "XRootD on another host"
HTTPS: Final = "nginx with https and a password on another host"
S3: Final = "S3 (moto) on another host"
_XROOTD = """
all.export /data
oss.localroot {folder}
all.adminpath {folder}/admin
all.pidpath {folder}/admin
"""
_NGINX = """
user root;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log {folder}/access.log;
  server {{
    listen 443 ssl;
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.key;
    root {folder};
    autoindex on;
    auth_basic data;
    auth_basic_user_file {folder}/users;
  }}
}}
"""


class FileServer:
    """A server of the files in `<folder>/data` on the second host, ended with the context.

    Its folder stands in the command line, by which its processes are known.
    """

    def __init__(self, hosts: Network, folder: Path, port: int, *command: str) -> None:
        self._hosts, self._folder, self._port, self._command = hosts, folder, port, command
        self.name = hosts.names[1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        log = self._folder / "started.log"
        self._hosts.serve(1, log, *self._command)
        probe = f"import socket; socket.create_connection(('{self.name}', {self._port}), 1)"
        asked = self._hosts.on_host(0, sys.executable, "-c", probe)
        deadline = time.monotonic() + 60
        while (
            subprocess.run(asked, capture_output=True, check=False).returncode
            or not self.processes()
        ):
            assert time.monotonic() < deadline, (
                f"{self._command[0]} does not listen: {log.read_text()[-2000:]}"
            )
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        return self._hosts.processes(1, str(self._folder))

    def kill(self) -> None:
        """End it as kill -9 does."""
        for process in self.processes():
            process.kill()
        wait_until(lambda: not self.processes(), label=f"{self._command[0]} is gone", seconds=10)


def xrootd(hosts: Network, folder: Path) -> FileServer:
    """An XRootD server of `root://<host>//data/`, for anyone; it does not run as root."""
    (folder / "admin").mkdir(mode=0o700)
    shutil.chown(folder / "admin", "nobody")
    config = folder / "xrootd.cfg"
    config.write_text(_XROOTD.format(folder=folder))
    command = (
        "xrootd",
        "-c",
        str(config),
        "-l",
        str(folder / "admin" / "server.log"),
        "-R",
        "nobody",
        "-p",
        "1094",
    )
    return FileServer(hosts, folder, 1094, *command)


def nginx(hosts: Network, folder: Path, user: str, password: str) -> FileServer:
    """An nginx of `https://<host>/data/` for one user; `<folder>/server.pem` is its certificate, signed by itself."""
    name = hosts.names[1]
    created = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    ]
    created += ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(folder / "server.key")]
    subprocess.run([*created, "-out", str(folder / "server.pem")], check=True, capture_output=True)
    asked = ["openssl", "passwd", "-apr1", "-stdin"]
    coded = subprocess.run(
        asked, input=password, capture_output=True, text=True, check=True
    ).stdout.strip()
    (folder / "users").write_text(f"{user}:{coded}\n")
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder))
    command = ("/usr/sbin/nginx", "-c", str(config), "-p", str(folder), "-g", "daemon off;")
    return FileServer(hosts, folder, 443, *command)


def s3(hosts: Network, folder: Path) -> FileServer:
    program = "import sys; from moto.server import main; main(sys.argv[2:])"
    command = (sys.executable, "-c", program, str(folder), "-H", hosts.names[1], "-p", "5000")
    return FileServer(hosts, folder, 5000, *command)


@pytest.fixture
def data() -> Iterator[Path]:
    """Folder of a server, with the samples below `data/`; a server that is not root can read it."""
    with tempfile.TemporaryDirectory(prefix="hep-server-") as name:
        Path(name).chmod(0o755)
        shutil.copytree(SAMPLES, Path(name) / "data")
        yield Path(name)


def loses_its_server(runs: HostRuns, server: FileServer, local: LocalResults) -> str:
    """What a run says that cannot reach its server; it ends, and the same command works when the server is back."""
    started = time.monotonic()
    message = " ".join(runs.run("ingest", fails=True).split())
    assert time.monotonic() - started < PATIENCE
    assert server.name in message
    server.start()
    runs.run("ingest")
    assert_same_version(runs.version("ingest"), local.version("ingest"), "ingest", tests=[])
    return message


@pytest.mark.skipif(bool(missing("xrootd")), reason="no xrootd here (Debian: xrootd-server)")
@pytest.mark.skipif(
    find_spec("fsspec_xrootd") is None, reason="no client of XRootD (pip install -e '.[xrootd]')"
)
def test_xrootd_is_read_like_local_files_and_given_up_when_silent(
    hosts: Network, data: Path, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    with xrootd(hosts, data) as server:
        runs = HostRuns(hosts, tmp_path, samples=f"root://{server.name}//data")
        for process in server.processes():
            process.suspend()
        started = time.monotonic()
        message = " ".join(runs.run("ingest", fails=True).split())
        assert time.monotonic() - started < PATIENCE
        assert f"root://{server.name}//data/" in message
        server.kill()
        add_row(XROOTD, "ingest; a server that hangs", "ends with the file's name")
        loses_its_server(runs, server, local)
        add_row(
            XROOTD, "ingest; a server that is down and starts again", "names it; the same events"
        )


@pytest.mark.skipif(
    bool(missing("nginx", "openssl")), reason="no nginx here (Debian: nginx-light, openssl)"
)
def test_https_takes_a_password_and_a_private_certificate(
    hosts: Network, data: Path, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    with nginx(hosts, data, "physicist", "hidden-word") as server:
        address = f"https://physicist:hidden-word@{server.name}/data"
        authority = {"SSL_CERT_FILE": str(data / "server.pem")}
        runs = HostRuns(hosts, tmp_path, samples=address, env=authority)
        server.kill()
        command = [loses_its_server(runs, server, local)]
        written = [
            path
            for path in runs.run_dir.rglob("*")
            if path.is_file() and b"hidden-word" in path.read_bytes()
        ]
        assert written == []
        add_row(
            HTTPS, "ingest; a server that is down and starts again", "names it; the same events"
        )
        for where, env, message in (
            (address, {}, "certificate"),
            (f"https://{server.name}/data", authority, "docs/own-files.md names the variables"),
        ):
            refused = HostRuns(hosts, tmp_path, samples=where, env=env)
            command.append(" ".join(refused.run("ingest", fails=True).split()))
            assert message in command[-1]
        assert "hidden-word" not in " ".join(command)
        add_row(HTTPS, "ingest; unknown certificate, no password", "each named")


def test_s3_holds_inputs_and_outputs(
    hosts: Network, data: Path, local: LocalResults, tmp_path: Path, add_row: AddRow
) -> None:
    upload = "import s3fs; s3 = s3fs.S3FileSystem(); s3.mkdir('bucket'); "
    stored = f"{upload}s3.put('{data}/data', 'bucket/', recursive=True)"
    with s3(hosts, data) as server, pytest.MonkeyPatch.context() as patch:
        lead_to(f"http://{server.name}:5000", patch)
        subprocess.run(hosts.on_host(0, sys.executable, "-c", stored), check=True)
        runs = HostRuns(hosts, tmp_path, samples="s3://bucket/data", storage="s3://bucket/outputs")
        for stage in ("ingest", "features", "train"):
            runs.run(stage)
        np.testing.assert_array_equal(
            flat_weights(runs.version("train") / "hlf"), flat_weights(local.trained())
        )
        assert list(runs.run_dir.rglob("*.parquet")) == []
        add_row(S3, "ingest, features, train; inputs and outputs there", "the same weights")
