"""A real S3 server on this machine, and the environment that leads every process to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import fsspec
import pytest
from moto.server import ThreadedMotoServer


class Server:
    """A running server with one bucket, `bucket`; it accepts any key."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: Any = fsspec.filesystem(
            "s3", key="a", secret="b", endpoint_url=url, skip_instance_cache=True, use_listings_cache=False  # noqa: S106
        )  # fmt: skip
        self.files.mkdir("bucket")

    def objects(self, prefix: str) -> set[str]:
        """Names of all objects below a prefix."""
        return {str(name).removeprefix(f"{prefix}/") for name in self.files.find(prefix)}


def lead_to(url: str, patch: pytest.MonkeyPatch) -> None:
    """Set the environment: this server and its credentials, and none of the user's."""
    settings = {
        "ENDPOINT_URL": url,
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
        "DEFAULT_REGION": "us-east-1",
        "EC2_METADATA_DISABLED": "true",
        "SHARED_CREDENTIALS_FILE": os.devnull,
    }
    for name, value in settings.items():
        patch.setenv(f"AWS_{name}", value)
    forget_connections()


def forget_connections() -> None:
    """Let the next access read the environment anew."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@contextmanager
def s3_server() -> Iterator[Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    # A process has the buckets of all its servers.
    urlopen(Request(f"{url}/moto-api/reset", method="POST")).close()  # noqa: S310 - our own server
    try:
        yield Server(url)
    finally:
        server.stop()
