"""Files on a real S3 server: read like local ones; wrong credentials and buckets are named, silence
ends."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delphes_files import checked_files, select, write_delphes
from event_rows import event_row, lepton
from s3_server import Server, forget_connections, lead_to, s3_server
from token_files import SECRET

from hep_core.atomic_files import new_file
from hep_core.input_errors import RefusedFileError, UnreachableFileError
from hep_core.storage import ATTEMPTS, as_path, limit_waiting, parquet_source
from ingestion.files import expand
from ingestion.settings import SampleSettings

# The server takes seconds to start.
pytestmark = pytest.mark.slow
#: What S3 says when a session token has ended.
EXPIRED: Final = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)


@pytest.fixture(scope="module")
def local_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events = [
        event_row(met=1.0 + n, electrons=[lepton(40.0, 0, 0)] if n % 3 else []) for n in range(20)
    ]
    return write_delphes(tmp_path_factory.mktemp("local") / "a.root", events)


@pytest.fixture(scope="module")
def server(local_file: Path) -> Iterator[Server]:
    """With the file as s3://bucket/a.root."""
    with s3_server() as running:
        running.files.put(str(local_file), "bucket/a.root")
        yield running


@pytest.fixture(autouse=True)
def credentials(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lead_to(server.url, monkeypatch)
    monkeypatch.setattr(
        "tenacity.nap.time", type("Clock", (), {"sleep": staticmethod(lambda _: None)})
    )


def sample(url: str) -> SampleSettings:
    return SampleSettings(name="remote", label=1, files=[url])


def test_a_file_of_a_bucket_gives_the_table_of_the_local_one(local_file: Path) -> None:
    assert [source.path for source in expand([sample("s3://bucket/*.root")])] == [
        "s3://bucket/a.root"
    ]
    tables = [
        select(info).table
        for info in checked_files("s3://bucket/a.root") + checked_files(local_file)
    ]
    assert tables[0].num_rows == 13
    assert tables[0].equals(tables[1])


def write_interrupted(path: Path) -> None:
    with new_file(path) as unfinished:
        unfinished.write_bytes(b"the first half")
        raise KeyboardInterrupt


def test_a_new_file_arrives_whole_or_not_at_all_and_can_be_read(
    tmp_path: Path, server: Server
) -> None:
    table = pa.table({"number": [1, 2, 3]})
    for folder in (as_path("s3://bucket/new"), tmp_path):
        with new_file(folder / "a.parquet") as unfinished:
            pq.write_table(table, unfinished)
        assert pq.read_table(parquet_source(folder / "a.parquet")).equals(table)
        with pytest.raises(KeyboardInterrupt):
            write_interrupted(folder / "b.parquet")
        # It may be that nothing is written.
        with new_file(folder / "c.parquet"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
    assert server.files.ls("bucket/new") == ["bucket/new/a.parquet"]


@pytest.mark.parametrize("name", ["a.root", "*.root"])
def test_missing_credentials_are_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(
        RefusedFileError, match=r"NoCredentialsError.*Correct the URL, the credentials"
    ):
        expand([sample(f"s3://bucket/{name}")])


def test_a_missing_bucket_is_named() -> None:
    with pytest.raises(RefusedFileError, match=r"s3://nobucket/\*.root: .*bucket does not exist"):
        expand([sample("s3://nobucket/*.root")])
    with pytest.raises(RefusedFileError, match=re.escape("s3://nobucket/a.root")):
        expand([sample("s3://nobucket/a.root")])


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("fsspec.config.conf", {})
        monkeypatch.setattr("hep_core.storage.READ_SECONDS", 0.3)
        limit_waiting.cache_clear()
        forget_connections()
        with pytest.raises(UnreachableFileError, match=re.escape("s3://bucket/a.root")):
            expand([sample("s3://bucket/a.root")])
        # Each attempt at the request connects: nobody else tries again in between.
        silent.setblocking(False)
        connections = []
        with contextlib.suppress(BlockingIOError):
            while True:
                connections.append(silent.accept()[0])
        for connection in connections:
            connection.close()
        assert len(connections) == ATTEMPTS


@pytest.mark.parametrize("name", ["a.root", "*.root"])
def test_a_session_token_that_has_ended_is_named_with_its_end(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2025-03-02T03:12:00Z")

    with pytest.raises(RefusedFileError) as refusal:
        expand([sample(f"s3://bucket/{name}")])

    assert str(refusal.value).endswith(
        "Note: the S3 session token in AWS_SESSION_TOKEN ended at 2025-03-02 03:12 UTC; set the "
        "AWS_* variables of another one."
    )
    assert SECRET not in str(refusal.value)


class RefusesToken(BaseHTTPRequestHandler):
    """Answers as S3 does when a session token has ended; a HEAD has no words."""

    def do_HEAD(self) -> None:
        self._refuse(b"")

    def do_GET(self) -> None:
        self._refuse(EXPIRED)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass

    def _refuse(self, body: bytes) -> None:
        self.send_response(400)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def refusing_server() -> Iterator[str]:
    """The address of a server that refuses every token."""
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusesToken) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("name", ["a.root", "*.root"])
def test_a_session_token_that_the_server_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    with refusing_server() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        forget_connections()
        with pytest.raises(RefusedFileError) as refusal:
            expand([sample(f"s3://bucket/{name}")])
    assert "AWS_SESSION_TOKEN does not say when it ends; if it has ended, set" in str(refusal.value)
    assert SECRET not in str(refusal.value)
