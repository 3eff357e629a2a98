"""Files on an HTTP server of our own: read like local ones, tried again when it falters, named when
it is down."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import numpy as np
import pytest
from aiohttp import ClientTimeout
from delphes_files import checked_files, select, source_of, write_delphes
from event_rows import Row, event_row, jet, lepton, tower, track
from faulty_server import DROPPED, REFUSED, SILENT, UNAVAILABLE, FaultyServer

from hep_core.input_errors import RefusedFileError, UnreachableFileError, UnreadableFileError
from hep_core.storage import ATTEMPTS, limit_waiting, retry_remote
from ingestion.errors import NoFilesError
from ingestion.file_info import FileInfo
from ingestion.files import expand, inventory
from ingestion.range_output import EntryRange, EventsPart, ingest_range
from ingestion.settings import IngestSettings, OnBadFile, SampleSettings

SETTINGS: Final = IngestSettings()
FOR_EVER: Final = 1_000_000
#: Requests that fail in a row: more than HEAD and the GET after it, fewer than what three attempts
#: make.
FAILURES: Final = {UNAVAILABLE: 2, DROPPED: 3}


def some_events(count: int = 60) -> list[Row]:
    rng = np.random.default_rng(7)
    return [
        event_row(
            electrons=[lepton(10.0 + entry, 0.5, 1.0)],
            tracks=[
                track(*rng.uniform([0.1, -2, -3], [9, 2, 3])) for _ in range(rng.integers(0, 40))
            ],
            photons=[
                tower(*rng.uniform([0.1, -2, -3], [9, 2, 3])) for _ in range(rng.integers(0, 10))
            ],
            jets=[jet(40.0, 1.0, 2.0, btag=entry % 8)],
            met=float(entry),
        )
        for entry in range(count)
    ]


@pytest.fixture(scope="module")
def served_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the server has as a.root."""
    return write_delphes(tmp_path_factory.mktemp("served") / "a.root", some_events())


@pytest.fixture
def server(served_file: Path) -> Iterator[FaultyServer]:
    with FaultyServer(served_file.parent) as started:
        thread = threading.Thread(
            target=started.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        yield started
        started.ended.set()
        started.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited between attempts."""
    waited: list[float] = []
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=waited.append))
    return waited


@pytest.fixture
def dead_url() -> Iterator[str]:
    """Of a port where nobody listens: it is taken."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{silent.getsockname()[1]}/a.root"


def sample(*urls: str) -> SampleSettings:
    return SampleSettings(name="remote", label=1, files=list(urls))


def ingested(info: FileInfo, folder: Path) -> EventsPart:
    """As a task of the Spark job reads it."""
    (chunk,) = retry_remote(ingest_range, EntryRange(info, 0, info.entries), SETTINGS, folder)
    return chunk


def test_a_remote_file_gives_the_table_of_the_local_one(
    server: FaultyServer, served_file: Path
) -> None:
    (source,) = expand([sample(f"{server.url}/a.root")])
    assert source == source_of("remote", 1, f"{server.url}/a.root")
    (remote,) = inventory([source], SETTINGS).infos
    (local,) = checked_files(served_file)
    assert (
        remote._replace(path=local.path, modified=local.modified, sample="made", label=0) == local
    )
    expected = select(local).table
    assert 10 <= expected.num_rows < 60
    assert select(remote._replace(sample="made", label=0)).table.equals(expected)
    assert {method for method, byte_range in server.requests if byte_range} == {"GET"}


def test_a_missing_url_is_named(server: FaultyServer) -> None:
    url = f"{server.url}/absent.root"
    with pytest.raises(NoFilesError, match=rf"sample 'remote': no file matches '{re.escape(url)}'"):
        expand([sample(f"{server.url}/a.root", url)])


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_a_remote_file_that_changes_in_place_is_checked_again(
    server: FaultyServer, header: str
) -> None:
    url = f"{server.url}/a.root"
    server.headers = {header: "Sat, 01 Nov 2025 10:00:00 GMT"}
    remembered = checked_files(url)[0]._replace(entries=12345)
    source = [source_of("remote", 1, url)]
    assert inventory(source, SETTINGS, known={url: remembered}).infos[0].entries == 12345
    server.headers = {header: "Sun, 02 Nov 2025 10:00:00 GMT"}
    assert inventory(source, SETTINGS, known={url: remembered}).infos[0].entries == 60


@pytest.mark.parametrize("fault", [UNAVAILABLE, DROPPED])
def test_finding_and_checking_files_retry_after_temporary_faults(
    server: FaultyServer, fault: str
) -> None:
    url = f"{server.url}/a.root"
    for ask in (
        lambda: expand([sample(url)])[0].path == url,
        lambda: checked_files(url)[0].entries == 60,
    ):
        server.fail(fault, FAILURES[fault])
        assert ask()
        assert server.faults_left == 0


def test_a_server_that_is_down_is_named(dead_url: str) -> None:
    pattern = dead_url.replace("a.root", "*.root")
    for named, ask in (
        (dead_url, lambda: expand([sample(dead_url)])),
        (pattern, lambda: expand([sample(pattern)])),
        (dead_url, lambda: checked_files(dead_url)[0]),
    ):
        with pytest.raises(UnreachableFileError, match=re.escape(named)):
            ask()


@pytest.mark.parametrize("num_good", [0, 10], ids=["at once", "amid baskets"])
@pytest.mark.parametrize("fault", [UNAVAILABLE, DROPPED])
def test_reading_gives_up_on_a_server_that_only_fails(
    server: FaultyServer, tmp_path: Path, fault: str, num_good: int, waits: list[float]
) -> None:
    (info,) = checked_files(f"{server.url}/a.root")
    server.fail(fault, FOR_EVER, num_good=num_good)

    with pytest.raises(UnreachableFileError, match=re.escape(info.path)):
        ingested(info, tmp_path)

    assert len(waits) == ATTEMPTS - 1
    assert not any(tmp_path.iterdir())


def test_a_file_skipped_because_its_server_was_down_is_checked_again(server: FaultyServer) -> None:
    settings = IngestSettings(on_bad_file=OnBadFile.SKIP)
    source = [source_of("remote", 1, f"{server.url}/a.root")]
    server.fail(UNAVAILABLE, FOR_EVER)
    (bad,) = inventory(source, settings).bad
    assert (bad.path, bad.reason) == (source[0].path, "UnreachableFileError")
    server.fail("", 0)
    assert inventory(source, settings, known={bad.path: bad}).infos[0].entries == 60


@pytest.mark.parametrize("name", ["a.root", "*.root"])
def test_a_server_that_refuses_access_asks_for_credentials(
    server: FaultyServer, name: str, waits: list[float]
) -> None:
    server.fail(REFUSED, FOR_EVER)
    with pytest.raises(
        RefusedFileError, match=rf"{re.escape(name)}: the server refuses .*credentials"
    ):
        expand([sample(f"{server.url}/{name}")])
    with pytest.raises(RefusedFileError, match="refuses its size"):
        inventory(
            [source_of("remote", 1, f"{server.url}/a.root")],
            IngestSettings(on_bad_file=OnBadFile.SKIP),
        )
    assert waits == []


@pytest.mark.parametrize("name", ["a.root", "*.root"])
def test_a_certificate_that_is_not_trusted_is_named(
    server: FaultyServer, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    asked = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*asked.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    with pytest.raises(
        RefusedFileError, match=rf"{re.escape(name)}: the server refuses .*certificate"
    ):
        expand([sample(f"{url}/{name}")])
    # What the message advises works; the library reads the variable when it is imported.
    code = "import sys; from hep_core.storage import matching_files; print(matching_files(sys.argv[1]))"
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate)}
    command = [sys.executable, "-c", code, f"{url}/a.root"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == f"['{url}/a.root']\n"


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = checked_files(f"{server.url}/a.root")[0]
    monkeypatch.setattr("fsspec.config.conf", {})
    monkeypatch.setattr("hep_core.storage.READ_SECONDS", 0.2)
    limit_waiting.cache_clear()
    server.fail(SILENT, FOR_EVER)
    for read in (
        lambda: expand([sample(info.path)]),
        lambda: checked_files(info.path)[0],
        lambda: ingested(info, tmp_path),
    ):
        with pytest.raises(UnreachableFileError, match=re.escape(info.path)):
            read()


def test_waits_of_xrootd_are_limited_unless_the_user_sets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("XRD_CONNECTIONWINDOW", "XRD_CONNECTIONRETRY", "XRD_STREAMERRORWINDOW"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XRD_REQUESTTIMEOUT", "7")
    limit_waiting.cache_clear()
    limit_waiting("root")
    assert {name: os.environ[name] for name in os.environ if name.startswith("XRD_")} == {
        "XRD_CONNECTIONWINDOW": "5",
        "XRD_CONNECTIONRETRY": "2",
        "XRD_STREAMERRORWINDOW": "10",
        "XRD_REQUESTTIMEOUT": "7",
    }


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("root://server/data/a.root", "Write root://server//data/a.root"),
        ("http://[::1]:8000/a.root", "'::' in a URL stands for a chain of file systems"),
        ("http://server/a::memory://b.root", "Write %3A%3A in a web address"),
        ("github://owner/a.root", "github://owner/a.root cannot be reached (GithubFileSystem"),
    ],
)
def test_a_url_that_no_file_system_takes_is_named(url: str, message: str) -> None:
    with pytest.raises(UnreadableFileError, match=re.escape(message)):
        expand([SampleSettings(name="remote", label=0, files=[url])])


@pytest.mark.slow
def test_the_timeout_of_the_user_limits_the_wait(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"https": {"client_kwargs": {"timeout": ClientTimeout(sock_read=0.3)}}}
    monkeypatch.setattr("fsspec.config.conf", conf)
    limit_waiting.cache_clear()
    server.fail(SILENT, FOR_EVER)
    with pytest.raises(UnreachableFileError, match=re.escape(f"{server.url}/a.root")):
        checked_files(f"{server.url}/a.root")
    assert conf == {"https": {"client_kwargs": {"timeout": ClientTimeout(sock_read=0.3)}}}
