"""Servers of files on the hosts of `network_hosts`: XRootD, nginx with https and a password, S3."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil
from network_hosts import Network
from ranks import wait_until

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
    """A server of the files in `<folder>/data` on a host; as a context it ends with it.

    Args:
        hosts: The hosts.
        number: The host.
        folder: Its files, which stand in its command line.
        port: Where it listens.
        command: What starts it.
        environment: Leads clients to it.
    """

    def __init__(
        self,
        hosts: Network,
        number: int,
        folder: Path,
        port: int,
        *command: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._hosts, self._number, self._folder = hosts, number, folder
        self._port, self._command = port, command
        self.name = hosts.names[number]
        self.environment = environment or {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        log = self._folder / "started.log"
        self._hosts.serve(self._number, log, *self._command)
        probe = f"import socket; socket.create_connection(('{self.name}', {self._port}), 1)"
        asked = self._hosts.on_host(0, sys.executable, "-c", probe)
        deadline = time.monotonic() + 60
        while subprocess.run(asked, capture_output=True, check=False).returncode or not self.processes():
            assert time.monotonic() < deadline, f"{self._command[0]} does not listen: {log.read_text()[-2000:]}"
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """Its processes."""
        return self._hosts.processes(self._number, str(self._folder))

    def kill(self) -> None:
        """End it as kill -9 does."""
        for each in self.processes():
            each.kill()
        wait_until(lambda: not self.processes(), what=f"{self._command[0]} is gone", seconds=10)


def xrootd(hosts: Network, number: int, folder: Path) -> FileServer:
    """An XRootD server of `root://<host>//data/`, for anyone; it does not run as root."""
    (folder / "admin").mkdir(mode=0o700)
    shutil.chown(folder / "admin", "nobody")
    config = folder / "xrootd.cfg"
    config.write_text(_XROOTD.format(folder=folder))
    words = ("xrootd", "-c", str(config), "-l", str(folder / "admin" / "server.log"), "-R", "nobody", "-p", "1094")
    return FileServer(hosts, number, folder, 1094, *words)


def nginx(hosts: Network, number: int, folder: Path, user: str, password: str) -> FileServer:
    """An nginx of `https://<host>/data/` for one user; `<folder>/server.pem` is its certificate, signed by itself."""
    name = hosts.names[number]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    made += ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(folder / "server.key")]
    subprocess.run([*made, "-out", str(folder / "server.pem")], check=True, capture_output=True)
    asked = ["openssl", "passwd", "-apr1", "-stdin"]
    coded = subprocess.run(asked, input=password, capture_output=True, text=True, check=True).stdout.strip()
    (folder / "users").write_text(f"{user}:{coded}\n")
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder))
    words = ("/usr/sbin/nginx", "-c", str(config), "-p", str(folder), "-g", "daemon off;")
    return FileServer(hosts, number, folder, 443, *words)


def s3(hosts: Network, number: int, folder: Path) -> FileServer:
    """An S3 server."""
    name = hosts.names[number]
    program = "import sys; from moto.server import main; main(sys.argv[2:])"
    words = (sys.executable, "-c", program, str(folder), "-H", name, "-p", "5000")
    environment = {
        "AWS_ENDPOINT_URL": f"http://{name}:5000",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    return FileServer(hosts, number, folder, 5000, *words, environment=environment)
