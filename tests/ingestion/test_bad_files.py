"""`ingest.on_bad_file`: skipped files, counters, messages, and the next run.

The stage runs as users run it, but its tasks run in this process: no JVM.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
import uproot
from analyses import Analysis
from delphes_files import damage, source_of, write_delphes
from event_rows import distinct, event_row, lepton

from hep_core.input_errors import DamagedFileError, InputFileError, UnreadableFileError
from ingestion.errors import BadFilesError, EmptySampleError, TruncatedFileError
from ingestion.file_info import FileInfo
from ingestion.files import SourceFile, inventory
from ingestion.inspection import inspect_file
from ingestion.root_format import open_root
from ingestion.settings import IngestSettings

NAMES = ("qcd", "ttbar", "wjets")


def write_good(path: Path, *, count: int = 6, **options: Any) -> Path:
    """Write a file of which every third event has no lepton; returns its path."""
    with_lepton, without_lepton = event_row(electrons=[lepton(40.0, 0, 0)]), event_row()
    rows = [with_lepton if index % 3 else without_lepton for index in range(count)]
    return write_delphes(path, distinct(rows), **options)


def text_file(path: Path) -> None:
    path.write_text("this is text, not ROOT, and long enough")


def truncated_file(path: Path) -> None:
    write_good(path)
    file_bytes = path.read_bytes()
    path.write_bytes(file_bytes[: len(file_bytes) // 2])


def damaged_file(path: Path) -> None:
    damage(write_good(path))


class BadFile(NamedTuple):
    """A way in which a file is bad, with the error that says so."""

    write: Callable[[Path], None]
    error: type[InputFileError]
    message: str


BAD_FILES = {
    "text": BadFile(text_file, UnreadableFileError, "is not a ROOT file"),
    "truncated": BadFile(truncated_file, TruncatedFileError, "is truncated"),
    "damaged": BadFile(damaged_file, DamagedFileError, "is damaged: entries"),
}


class Incoming(Analysis):
    """Three samples of one good file each, and the runs over them."""

    def __init__(self, folder: Path, good: Path) -> None:
        super().__init__(folder)
        shutil.copytree(good, self.data)

    def ingest(self, **settings: Any) -> str:
        """Run `ingest` with these settings; returns its output in long lines."""
        return self.run("ingest", ingest=settings)

    def bad_files(self) -> list[tuple[str, str, str]]:
        """Sample, name and reason of each bad file."""
        records = self.counters("ingest")["bad_files"]
        return [(bad["sample"], Path(bad["path"]).name, bad["reason"]) for bad in records]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good file of each sample, to copy: writing them takes as long as reading them."""
    folder = tmp_path_factory.mktemp("good")
    for name in NAMES:
        write_good(folder / f"{name}_0.root")
    return folder


@pytest.fixture
def analysis(good: Path, tmp_path: Path) -> Incoming:
    return Incoming(tmp_path, good)


@pytest.fixture
def three_bad(analysis: Incoming) -> Incoming:
    """A bad file of each sample beside the good ones, bad in three ways."""
    for name, bad_file in zip(NAMES, BAD_FILES.values(), strict=True):
        bad_file.write(analysis.data / f"{name}_bad.root")
    return analysis


@pytest.mark.parametrize("bad_file", BAD_FILES.values(), ids=BAD_FILES)
def test_by_default_a_bad_file_is_an_error_and_nothing_is_published(
    analysis: Incoming, bad_file: BadFile
) -> None:
    bad_file.write(analysis.data / "qcd_bad.root")

    with pytest.raises(bad_file.error, match=rf"qcd_bad\.root {bad_file.message}"):
        analysis.ingest()

    assert list((analysis.run_dir / "ingest").glob("*")) == []


@pytest.mark.parametrize(("qcd", "ttbar"), [("text", "truncated"), ("damaged", "damaged")])
def test_by_default_all_bad_files_are_listed_at_once(
    analysis: Incoming, qcd: str, ttbar: str
) -> None:
    BAD_FILES[qcd].write(analysis.data / "qcd_bad.root")
    BAD_FILES[ttbar].write(analysis.data / "ttbar_bad.root")

    with pytest.raises(BadFilesError, match=r"(?s)2 input files are bad:.*qcd_bad.*ttbar_bad"):
        analysis.ingest()


def test_skipped_files_are_listed_with_sample_path_and_reason(three_bad: Incoming) -> None:
    output = three_bad.ingest(on_bad_file="skip")

    assert sorted(three_bad.bad_files()) == [
        ("qcd", "qcd_bad.root", "UnreadableFileError"),
        ("ttbar", "ttbar_bad.root", "TruncatedFileError"),
        ("wjets", "wjets_bad.root", "DamagedFileError"),
    ]
    records = sorted(three_bad.counters("ingest")["bad_files"], key=itemgetter("path"))
    for record, bad_file in zip(records, BAD_FILES.values(), strict=True):
        assert bad_file.message in record["message"]
        assert f"skipped: {record['message']}" in output
    assert "3 bad files skipped" in output


def test_counters_add_up_and_are_those_of_the_good_files_alone(
    three_bad: Incoming, tmp_path: Path
) -> None:
    three_bad.ingest(on_bad_file="skip")

    counters = three_bad.counters("ingest")
    for name in NAMES:
        sample = counters["samples"][name]
        assert (sample["entries"], sample["rejected_no_lepton"], sample["events"]) == (6, 2, 4)
        assert counters["weights"][name]["entries"] == [6.0, 6.0]
    assert counters["files_read"] == 3
    events = three_bad.folder_of("ingest") / "events"
    assert {path.name for path in events.iterdir()} == {
        record["name"] for record in counters["parts"]
    }
    assert pq.read_table(events).num_rows == 12

    three_bad.run_dir = tmp_path / "without"
    for path in three_bad.data.glob("*_bad.root"):
        path.unlink()
    three_bad.ingest()
    for key in ("samples", "weights", "parts"):
        assert three_bad.counters("ingest")[key] == counters[key]


@pytest.mark.slow
def test_no_event_of_a_file_stays_of_which_one_piece_is_damaged(analysis: Incoming) -> None:
    path = write_good(analysis.data / "qcd_many.root", count=15, baskets=[5, 5, 5])
    analysis.ingest(entries_per_task=5)
    with uproot.open(path) as file:
        file_uuid = str(file.file.uuid)
    uuids = [record["file_uuid"] for record in analysis.counters("ingest")["parts"]]
    assert uuids.count(file_uuid) == 3

    damage(path)
    analysis.ingest(entries_per_task=5, on_bad_file="skip")

    assert analysis.bad_files() == [("qcd", "qcd_many.root", "DamagedFileError")]
    assert analysis.counters("ingest")["samples"]["qcd"]["entries"] == 6
    assert len(list((analysis.folder_of("ingest") / "events").iterdir())) == 3


def test_a_second_run_is_up_to_date_and_checks_only_what_may_have_been_repaired(
    three_bad: Incoming, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_bad.ingest(on_bad_file="skip")
    folder = three_bad.folder_of("ingest")
    records = three_bad.counters("ingest")["bad_files"]
    repairable = {record["path"] for record in records if not record["found_while_reading"]}
    assert len(repairable) == 2

    def inspect_only_repairable(source: SourceFile, *settings: Any, **options: Any) -> FileInfo:
        assert source.path in repairable
        return inspect_file(source, *settings, **options)

    with monkeypatch.context() as patch:
        patch.setattr("ingestion.files.inspect_file", inspect_only_repairable)
        assert "ingest: up to date" in three_bad.ingest(on_bad_file="skip", max_bad_files=3)
    assert three_bad.folder_of("ingest") == folder

    with pytest.raises(BadFilesError):
        three_bad.ingest()
    assert three_bad.folder_of("ingest") == folder


def test_bad_files_may_go_and_good_files_come(three_bad: Incoming) -> None:
    three_bad.ingest(on_bad_file="skip")
    (three_bad.data / "qcd_bad.root").unlink()
    write_good(three_bad.data / "qcd_1.root")
    write_delphes(three_bad.data / "qcd_empty.root", [])

    output = three_bad.ingest(on_bad_file="skip")

    assert f"input removed: {three_bad.data / 'qcd_bad.root'} (skipped)" in output
    assert "1 files read, 3 reused; 2 bad files skipped" in output
    assert three_bad.counters("ingest")["files_read"] == 1
    assert len(three_bad.counters("ingest")["bad_files"]) == 2


def test_more_bad_files_than_allowed_are_an_error_that_lists_them(three_bad: Incoming) -> None:
    # Two are found when files are checked, the third when events are read.
    with pytest.raises(
        BadFilesError, match=r"3 input files are bad, more than ingest.max_bad_files allows \(2\)"
    ) as caught:
        three_bad.ingest(on_bad_file="skip", max_bad_files=2)
    for name in NAMES:
        assert f"{name}_bad.root" in str(caught.value)

    with pytest.raises(
        BadFilesError, match=r"(?s)2 input files are bad.*allows \(1\).*qcd_bad.*ttbar_bad"
    ):
        three_bad.ingest(on_bad_file="skip", max_bad_files=1)
    assert list((three_bad.run_dir / "ingest").glob("*")) == []

    three_bad.ingest(on_bad_file="skip", max_bad_files=3)
    assert len(three_bad.counters("ingest")["bad_files"]) == 3


@pytest.mark.parametrize("bad_file", BAD_FILES.values(), ids=BAD_FILES)
@pytest.mark.slow
def test_a_sample_of_bad_files_alone_names_the_cause(analysis: Incoming, bad_file: BadFile) -> None:
    bad_file.write(analysis.data / "qcd_0.root")

    cause = rf"\S*qcd_0\.root {bad_file.message}"
    with pytest.raises(
        EmptySampleError, match=rf"(?s)sample 'qcd': no file of it can be read; the first: {cause}"
    ):
        analysis.ingest(on_bad_file="skip")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("uproot.open", ImportError),
        ("uproot.open", AttributeError),
        ("ingestion.reader.piece_edges", NameError),
        ("uproot.behaviors.TBranch.TBranch.array", AttributeError),
        ("uproot.behaviors.TBranch.TBranch.array", TypeError),
    ],
)
def test_an_error_of_a_program_is_no_damage_and_stops_even_where_bad_files_are_skipped(
    analysis: Incoming, monkeypatch: pytest.MonkeyPatch, function: str, error: type[Exception]
) -> None:
    broken = Mock(side_effect=error("module 'numpy' has no attribute 'unicode_'"))
    with monkeypatch.context() as patch:
        patch.setattr(function, broken)
        with pytest.raises(InputFileError, match="3 input files are bad") as caught:
            analysis.ingest(on_bad_file="skip")
    assert "is damaged" not in str(caught.value)
    assert "unicode_" in str(caught.value)

    # Nothing is remembered: once the program is repaired, all files are read.
    analysis.ingest(on_bad_file="skip")
    assert analysis.counters("ingest")["bad_files"] == []
    assert analysis.counters("ingest")["files_read"] == 3


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENOTCONN])
def test_a_file_that_met_a_temporary_error_of_the_system_is_read_in_the_next_run(
    analysis: Incoming, monkeypatch: pytest.MonkeyPatch, error_number: int
) -> None:
    """Such errors come from a dead mount, or from too many open files."""
    write_good(analysis.data / "qcd_1.root")

    def open_or_fail(path: str) -> Any:
        if "qcd_1" in path:
            raise OSError(error_number, os.strerror(error_number))
        return open_root(path)

    with monkeypatch.context() as patch:
        patch.setattr("ingestion.reader.open_root", open_or_fail)
        patch.setattr("tenacity.nap.time.sleep", lambda _: None)
        analysis.ingest(on_bad_file="skip")
    assert analysis.bad_files() == [("qcd", "qcd_1.root", "UnreachableFileError")]

    analysis.ingest(on_bad_file="skip")
    assert analysis.counters("ingest")["files_read"] == 1
    assert analysis.bad_files() == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("libz.so: failed to map segment from shared object"),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_no_damage_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    source = source_of("qcd", 0, str(write_good(tmp_path / "a.root")))
    monkeypatch.setattr(uproot, "open", Mock(side_effect=error))

    with pytest.raises(type(error)):
        inventory([source], IngestSettings(on_bad_file="skip"))


def test_a_damaged_file_is_read_again_with_other_packages(
    analysis: Incoming, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(write_good(analysis.data / "qcd_1.root"))
    analysis.ingest(on_bad_file="skip")
    open_file = Mock(side_effect=uproot.open)
    monkeypatch.setattr(uproot, "open", open_file)

    analysis.ingest(on_bad_file="skip")
    open_file.assert_not_called()

    monkeypatch.setattr("pipeline.stages.ingest.package_versions", lambda: {"uproot": "another"})
    analysis.ingest(on_bad_file="skip")
    opened = [str(call.args[0]) for call in open_file.call_args_list]
    assert any("qcd_1.root" in path for path in opened)


def test_files_whose_events_were_deleted_are_read_again(analysis: Incoming) -> None:
    analysis.ingest()
    deleted = min((analysis.folder_of("ingest") / "events").iterdir())
    deleted.unlink()
    write_good(analysis.data / "qcd_1.root")

    analysis.ingest()

    assert analysis.counters("ingest")["files_read"] == 2
    assert (analysis.folder_of("ingest") / "events" / deleted.name).is_file()
