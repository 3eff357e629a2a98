"""Fixtures for the tests of outputs on object storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import Server, lead_to, s3_server
from stages_in_process import without_spark
from stored_sites import Site


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def use_server(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every process of the test gets to the server; stages run without Spark."""
    lead_to(server.url, monkeypatch)
    (tmp_path / "scratch").mkdir()
    without_spark(monkeypatch, tmp_path / "scratch")


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    return Site(tmp_path, server)


@pytest.fixture
def remote(site: Site) -> Path:
    """A config of the run folder `remote`, whose outputs go to the server."""
    return site.config("remote", site.storage)
