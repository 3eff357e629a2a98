"""Files that are still being written, or came too late, are left for another run, with a
message."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES
from delphes_files import source_of

from ingestion import files as module
from ingestion.conflicts import is_recent
from ingestion.errors import BadFilesError, FilesToComeError, TruncatedFileError
from ingestion.files import Inventory, SourceFile, find_input_files, inventory
from ingestion.settings import IngestSettings, SampleSettings

WHOLE = SAMPLES / "qcd_13TeV_PU20_0.root"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A whole file, and one of which half has been written just now."""
    shutil.copy(WHOLE, tmp_path / "whole.root")
    file_bytes = WHOLE.read_bytes()
    (tmp_path / "half.root").write_bytes(file_bytes[: len(file_bytes) // 2])
    return tmp_path


def look(data: Path, **settings: Any) -> Inventory:
    sources = [source_of("qcd", 0, str(path)) for path in sorted(data.glob("*.root"))]
    return inventory(sources, IngestSettings(**settings))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def names(actual: Inventory) -> dict[str, list[str]]:
    return {
        "read": [Path(info.path).name for info in actual.infos],
        "bad": [Path(bad_file.path).name for bad_file in actual.bad],
        "waiting": [Path(bad_file.path).name for bad_file in actual.waiting],
    }


def test_a_file_that_is_being_written_waits(data: Path) -> None:
    reports: list[str] = []
    input_files = find_input_files(
        samples(data, "qcd"), IngestSettings(settle_seconds=60), reports.append
    )
    assert names(input_files) == {"read": ["whole.root"], "bad": [], "waiting": ["half.root"]}
    assert "may still be being written" in input_files.waiting[0].reason
    assert "truncated" in input_files.waiting[0].reason
    assert [line.partition(": it may")[0] for line in reports] == [
        f"left for another run: {data / 'half.root'}"
    ]


def test_files_that_wait_for_the_same_reason_are_named_in_one_line(data: Path) -> None:
    for name in ("third.root", "quarter.root"):
        shutil.copy(data / "half.root", data / name)
    reports: list[str] = []
    input_files = find_input_files(
        samples(data, "qcd"), IngestSettings(settle_seconds=60), reports.append
    )
    waiting = [Path(file.path) for file in input_files.waiting]
    assert len(waiting) == 3
    (line,) = reports
    assert line.startswith(f"left for another run: {waiting[0]}: it may")
    assert f"The same of 2 more: {waiting[1]}, {waiting[2]}" in line


def test_a_truncated_file_is_bad_once_it_no_longer_changes(data: Path) -> None:
    with pytest.raises((TruncatedFileError, BadFilesError), match="truncated"):
        look(data)
    age(data / "half.root", 120)
    with pytest.raises((TruncatedFileError, BadFilesError), match="truncated"):
        look(data, settle_seconds=60)
    actual = look(data, settle_seconds=60, on_bad_file="skip")
    assert names(actual) == {"read": ["whole.root"], "bad": ["half.root"], "waiting": []}
    shutil.copy(SAMPLES / "qcd_13TeV_PU20_1.root", data / "half.root")
    assert names(look(data, settle_seconds=60))["read"] == ["half.root", "whole.root"]


def test_a_file_that_grows_during_its_check_waits(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "half.root").unlink()
    inspect = module.inspect_file

    def growing(source: SourceFile, *arguments: Any, **options: Any) -> Any:
        actual = inspect(source, *arguments, **options)
        with Path(source.path).open("ab") as file:
            file.write(b"more")
        return actual

    monkeypatch.setattr(module, "inspect_file", growing)
    actual = look(data, settle_seconds=60)
    assert names(actual) == {"read": [], "bad": [], "waiting": ["whole.root"]}
    assert actual.waiting[0].reason == "it changed while it was checked"


@pytest.mark.parametrize(("seconds", "waits"), [(-30, True), (30, True), (-90, False), (90, False)])
def test_a_clock_may_be_ahead_by_the_settle_time(seconds: float, waits: bool) -> None:
    assert is_recent(str(time.time() + seconds), 60) is waits


def test_files_modified_after_the_limit_wait(data: Path) -> None:
    (data / "half.root").unlink()
    shutil.copy(SAMPLES / "qcd_13TeV_PU20_1.root", data / "later.root")
    until = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    for name, days in (("whole.root", -1), ("later.root", 0)):
        then = until.timestamp() + days * 86400
        os.utime(data / name, (then, then))
    actual = look(data, until=until)
    assert names(actual) == {"read": ["whole.root"], "bad": [], "waiting": ["later.root"]}
    assert "2026-01-02" in actual.waiting[0].reason


def samples(data: Path, *names: str) -> list[SampleSettings]:
    return [SampleSettings(name=name, label=0, files=[str(data / "*.root")]) for name in names]


def test_a_glob_without_files_gives_a_note_or_if_strict_an_error(data: Path) -> None:
    (data / "half.root").unlink()
    (sample,) = samples(data, "qcd")
    sample = sample.model_copy(update={"files": [*sample.files, str(data / "late*.root")]})
    reports: list[str] = []
    find_input_files([sample], IngestSettings(), reports.append)
    assert reports == [
        f"note: sample 'qcd': no file matches '{data / 'late*.root'}' (yet?); its other files are taken"
    ]
    with pytest.raises(FilesToComeError, match=r"no file matches .*late"):
        find_input_files([sample], IngestSettings(), reports.append, strict=True)


def test_times_of_servers_are_never_recent() -> None:
    assert not is_recent("2026-11-21T00:00:00+00:00", 1e12)
    assert not is_recent("", 1e12)
