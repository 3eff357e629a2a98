"""Temporary failures are tried three times, other failures once. These tests do not sleep."""

from __future__ import annotations

import errno
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot
from delphes_files import checked_files, read_in_pieces, select, write_delphes
from event_rows import event_row, lepton
from fsspec.implementations.local import LocalFileSystem
from spark_in_process import InProcessSpark

from hep_core.input_errors import (
    DamagedFileError,
    RefusedFileError,
    UnreachableFileError,
    UnreadableFileError,
    read_error,
)
from hep_core.storage import ATTEMPTS, retry_remote, translate_fs_errors
from ingestion.kept_branches import types_of_kept_branches
from ingestion.range_output import ingest_range, split_entries
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.spark_job import ingest

LOCAL, REMOTE = "/data/a.root", "root://server//a.root"


def error_of_module(module: str, *bases: type[Exception]) -> Exception:
    """An error whose class is defined in a module."""
    error_class: type[Exception] = type("Failure", bases or (Exception,), {"__module__": module})
    return error_class("some message")


@pytest.mark.parametrize(
    ("cause", "local_error", "remote_error"),
    [
        (OSError(errno.EIO, "Input/output error"), UnreachableFileError, UnreachableFileError),
        (OSError(errno.EMFILE, "Too many open files"), UnreachableFileError, UnreachableFileError),
        (BlockingIOError(errno.EAGAIN, "Try again"), UnreachableFileError, UnreachableFileError),
        (TimeoutError(), UnreachableFileError, UnreachableFileError),
        (ConnectionRefusedError(), UnreachableFileError, UnreachableFileError),
        (FileNotFoundError(errno.ENOENT, "No file"), UnreadableFileError, UnreadableFileError),
        (PermissionError(errno.EACCES, "Denied"), UnreadableFileError, RefusedFileError),
        (IsADirectoryError(errno.EISDIR, "A folder"), DamagedFileError, DamagedFileError),
        # Uproot says this of damaged bytes; of a server it may be anything.
        (OSError("not a ROOT file"), DamagedFileError, UnreachableFileError),
        (OSError(errno.EINVAL, "Invalid argument"), DamagedFileError, UnreachableFileError),
        (OSError("[ERROR] [3011] No such file"), DamagedFileError, DamagedFileError),
        (error_of_module("botocore.exceptions"), DamagedFileError, UnreachableFileError),
        (error_of_module("aiohttplike.exceptions"), DamagedFileError, DamagedFileError),
        (
            error_of_module("aiohttp.client_exceptions", FileNotFoundError),
            UnreadableFileError,
            UnreadableFileError,
        ),
        (ValueError("inconsistent"), DamagedFileError, DamagedFileError),
        (
            uproot.deserialization.DeserializationError("bad", None, None, {}, LOCAL),
            DamagedFileError,
            DamagedFileError,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_only_errors_that_may_pass_are_retried(
    cause: Exception, local_error: type[Exception], remote_error: type[Exception]
) -> None:
    assert type(read_error(LOCAL, where="its index", cause=cause)) is local_error
    assert type(read_error(REMOTE, where="its index", cause=cause)) is remote_error


@pytest.mark.parametrize(
    "name", ["NoSuchBucket", "NoCredentialsError", "ClientConnectorCertificateError"]
)
def test_a_refusing_server_is_named_and_its_file_is_never_skipped(name: str) -> None:
    cause = FileNotFoundError("The specified bucket does not exist")
    cause.__cause__ = type(name, (Exception,), {})("not for you")
    problem = read_error("s3://bucket/a.root", where="its size", cause=cause)
    assert (
        f"s3://bucket/a.root: the server refuses its size ({name}: not for you). Correct the URL"
        in str(problem)
    )
    assert not problem.may_be_skipped
    assert (
        read_error("root://eos//a", where="it", cause=OSError("[3010] denied")).may_be_skipped
        is False
    )
    for status in (401, 403, 407):
        denied = type("ClientResponseError", (Exception,), {"status": status})()
        assert isinstance(
            read_error("https://host/a.root", where="it", cause=denied), RefusedFileError
        )


def test_temporary_disk_errors_are_translated_and_missing_files_are_not() -> None:
    with (
        pytest.raises(UnreachableFileError, match="/data/a: its hash could not be read"),
        translate_fs_errors("/data/a", "its hash"),
    ):
        raise once_more()
    with pytest.raises(FileNotFoundError), translate_fs_errors(Path("/data/a"), "its content"):
        raise FileNotFoundError("/data/a")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been slept between attempts; threads of other tests sleep as they like."""
    slept: list[float] = []
    real = time.sleep

    def sleep(seconds: float) -> None:
        is_between_attempts = sys._getframe(1).f_globals["__name__"].startswith("tenacity")
        (slept.append if is_between_attempts else real)(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    return slept


class Flaky:
    """A function that works `num_good` times, then raises an error `times` times, then works."""

    def __init__(
        self,
        function: Callable[..., Any],
        error: Exception,
        *,
        times: int = 1000,
        num_good: int = 0,
    ) -> None:
        self.function = function
        self.error = error
        self.failing = range(num_good, num_good + times)
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls - 1 in self.failing:
            raise self.error
        return self.function(*args, **kwargs)

    def method(self) -> Callable[..., Any]:
        """Itself as a function that takes `self`."""

        def call(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return self(instance, *args, **kwargs)

        return call


def once_more() -> OSError:
    return OSError(errno.EIO, "Input/output error")


def test_the_last_failure_is_raised_as_it_is_and_waits_grow(waits: list[float]) -> None:
    problem = UnreachableFileError("away")
    read = Flaky(lambda: None, problem)
    with pytest.raises(UnreachableFileError) as caught:
        retry_remote(read)
    assert caught.value is problem
    assert read.calls == ATTEMPTS == 4
    assert waits == [1, 3, 9]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    events = [
        event_row(met=1.0 + n, electrons=[lepton(40.0, 0, 0)] if n % 3 else []) for n in range(20)
    ]
    return write_delphes(tmp_path / "a.root", events)


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    "position", [(uproot, "open"), (LocalFileSystem, "open"), (LocalFileSystem, "info")]
)
def test_a_file_that_opens_at_the_third_attempt_is_fine(
    path: Path, monkeypatch: pytest.MonkeyPatch, position: tuple[Any, str]
) -> None:
    """Its directory, its header or its size."""
    flaky = Flaky(getattr(*position), once_more(), times=2)
    monkeypatch.setattr(*position, flaky if position[0] is uproot else flaky.method())
    assert checked_files(path)[0].entries == 20
    assert flaky.calls >= 3


@pytest.mark.usefixtures("waits")
def test_a_file_without_entries_gives_the_type_of_a_branch_at_the_third_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = checked_files(write_delphes(tmp_path / "none.root", [], more={"run": np.arange(0)}))
    flaky = Flaky(uproot.open, once_more(), times=2)
    monkeypatch.setattr(uproot, "open", flaky)

    types = types_of_kept_branches(infos, IngestSettings(), ["run"])

    assert types == {"run": "int64"}
    assert flaky.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file"),
        PermissionError(errno.EACCES, "Permission denied"),
        ValueError("damaged bytes"),
        OSError("damaged bytes"),
        zlib.error("damaged bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_file_that_is_bad_for_good_is_opened_once(
    path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    (info,) = checked_files(path)
    (work,) = split_entries([info])
    flaky = Flaky(uproot.open, error)
    monkeypatch.setattr(uproot, "open", flaky)
    with pytest.raises((DamagedFileError, UnreadableFileError)):
        checked_files(path)
    assert flaky.calls == 1
    with pytest.raises((DamagedFileError, UnreadableFileError)):
        retry_remote(ingest_range, work, IngestSettings(), path.parent)
    assert (flaky.calls, waits) == (2, [])
    if isinstance(error, FileNotFoundError | PermissionError):
        header = Flaky(LocalFileSystem.open, error)
        monkeypatch.setattr(LocalFileSystem, "open", header.method())
        with pytest.raises(UnreadableFileError, match="cannot be opened"):
            checked_files(path)
        assert (header.calls, waits) == (1, [])


@pytest.mark.usefixtures("waits")
def test_a_task_that_reads_at_the_third_attempt_gives_every_event_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (info,) = checked_files(path)
    expected = select(info).table
    # Call 61 is of the third piece: rows of two have been written. The second attempt fails at
    # once.
    read_in_pieces(monkeypatch, 2)
    flaky = Flaky(uproot.TBranch.array, once_more(), times=2, num_good=60)
    monkeypatch.setattr(uproot.TBranch, "array", flaky.method())
    out, in_process_spark = tmp_path / "out", InProcessSpark()
    out.mkdir()
    spark: Any = in_process_spark
    samples = [SampleSettings(name="made", label=0, files=["-"])]
    (chunk,) = ingest(
        spark, [info], samples, IngestSettings(), out, done=spark, num_tasks=int
    ).parts
    assert in_process_spark.value == 20
    assert pq.read_table(out / chunk.name).equals(expected)
    assert [each.name for each in out.iterdir()] == [chunk.name]
