"""`ingest.on_bad_file`: skipped files, counters, messages, and the next run.

The stage runs as users run it, but its tasks run in this process: no JVM.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    """Every third event has no lepton."""
    rows = [event_row(electrons=[lepton(40.0, 0, 0)] if n % 3 else []) for n in range(count)]
    return write_delphes(path, distinct(rows), **options)


def text_file(path: Path) -> None:
    path.write_text("this is text, not ROOT, and long enough")


def truncated_file(path: Path) -> None:
    write_good(path)
    file_bytes = path.read_bytes()
    path.write_bytes(file_bytes[: len(file_bytes) // 2])


def damaged_file(path: Path) -> None:
    damage(write_good(path))


KINDS: dict[str, tuple[Callable[[Path], None], type[InputFileError], str]] = {
    "text": (text_file, UnreadableFileError, "is not a ROOT file"),
    "truncated": (truncated_file, TruncatedFileError, "is truncated"),
    "damaged": (damaged_file, DamagedFileError, "is damaged: entries"),
}


class Incoming(Analysis):
    """Three samples of one good file each, and the runs over them."""

    def __init__(self, folder: Path, good: Path) -> None:
        super().__init__(folder)
        shutil.copytree(good, self.data)

    def ingest(self, **settings: Any) -> str:
        """What is printed, without line breaks of the terminal."""
        return self.run("ingest", ingest=settings)


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
    """One bad file of each kind beside the good ones."""
    for name, (make, _, _) in zip(NAMES, KINDS.values(), strict=True):
        make(analysis.data / f"{name}_bad.root")
    return analysis


def bad_of(counters: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (counter["sample"], Path(counter["path"]).name, counter["reason"])
        for counter in counters["bad_files"]
    ]


@pytest.mark.parametrize("kind_name", KINDS)
def test_by_default_a_bad_file_is_an_error_and_nothing_is_published(
    analysis: Incoming, kind_name: str
) -> None:
    make, error, message = KINDS[kind_name]
    make(analysis.data / "qcd_bad.root")
    with pytest.raises(error, match=rf"qcd_bad\.root {message}"):
        analysis.ingest()
    assert list((analysis.run_dir / "ingest").glob("*")) == []


@pytest.mark.parametrize("kinds", [("text", "truncated"), ("damaged", "damaged")])
def test_by_default_all_bad_files_are_listed_at_once(
    analysis: Incoming, kinds: tuple[str, str]
) -> None:
    for name, kind_name in zip(NAMES, kinds, strict=False):
        KINDS[kind_name][0](analysis.data / f"{name}_bad.root")
    with pytest.raises(BadFilesError, match=r"(?s)2 input files are bad:.*qcd_bad.*ttbar_bad"):
        analysis.ingest()


def test_skipped_files_are_listed_with_sample_path_and_reason(three_bad: Incoming) -> None:
    displayed = three_bad.ingest(on_bad_file="skip")
    counters = three_bad.counters("ingest")
    assert sorted(bad_of(counters)) == [
        ("qcd", "qcd_bad.root", "UnreadableFileError"),
        ("ttbar", "ttbar_bad.root", "TruncatedFileError"),
        ("wjets", "wjets_bad.root", "DamagedFileError"),
    ]
    for bad_file, (_, _, message) in zip(
        sorted(counters["bad_files"], key=lambda e: e["path"]), KINDS.values(), strict=True
    ):
        assert message in bad_file["message"]
        assert f"skipped: {bad_file['message']}" in displayed
    assert "3 bad files skipped" in displayed


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
    files = {path.name for path in (three_bad.folder_of("ingest") / "events").iterdir()}
    assert files == {chunk["name"] for chunk in counters["parts"]}
    assert (
        sum(
            pq.read_metadata(three_bad.folder_of("ingest") / "events" / name).num_rows
            for name in files
        )
        == 12
    )
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
    with uproot.open(path) as opened:
        identity = str(opened.file.uuid)
    assert [chunk["file_uuid"] for chunk in analysis.counters("ingest")["parts"]].count(
        identity
    ) == 3
    damage(path)
    analysis.ingest(entries_per_task=5, on_bad_file="skip")
    assert bad_of(analysis.counters("ingest")) == [("qcd", "qcd_many.root", "DamagedFileError")]
    assert analysis.counters("ingest")["samples"]["qcd"]["entries"] == 6
    assert len(list((analysis.folder_of("ingest") / "events").iterdir())) == 3


def test_a_second_run_is_up_to_date_and_checks_only_what_may_have_been_repaired(
    three_bad: Incoming, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_bad.ingest(on_bad_file="skip")
    folder_of_before = three_bad.folder_of("ingest")
    bad = {
        counter["path"]
        for counter in three_bad.counters("ingest")["bad_files"]
        if not counter["found_while_reading"]
    }
    assert len(bad) == 2

    def only_bad_ones(source: SourceFile, *remainder: Any, **options: Any) -> FileInfo:
        assert source.path in bad
        return inspect_file(source, *remainder, **options)

    with monkeypatch.context() as patch:
        patch.setattr("ingestion.files.inspect_file", only_bad_ones)
        assert "ingest: up to date" in three_bad.ingest(on_bad_file="skip", max_bad_files=3)
    assert three_bad.folder_of("ingest") == folder_of_before
    with pytest.raises(BadFilesError):
        three_bad.ingest()
    assert three_bad.folder_of("ingest") == folder_of_before
    # One is taken away, and one that is good comes, beside one without entries.
    (three_bad.data / "qcd_bad.root").unlink()
    write_good(three_bad.data / "qcd_1.root")
    write_delphes(three_bad.data / "qcd_empty.root", [])
    displayed = three_bad.ingest(on_bad_file="skip")
    assert f"input removed: {three_bad.data / 'qcd_bad.root'} (skipped)" in displayed
    assert "1 files read, 3 reused; 2 bad files skipped" in displayed
    assert three_bad.counters("ingest")["files_read"] == 1
    assert len(three_bad.counters("ingest")["bad_files"]) == 2


def test_more_bad_files_than_allowed_are_an_error_that_lists_them(three_bad: Incoming) -> None:
    # Two are found when files are checked, the third when events are read.
    with pytest.raises(
        BadFilesError, match=r"3 input files are bad, more than ingest.max_bad_files allows \(2\)"
    ) as e:
        three_bad.ingest(on_bad_file="skip", max_bad_files=2)
    assert all(f"{name}_bad.root" in str(e.value) for name in NAMES)
    with pytest.raises(
        BadFilesError, match=r"(?s)2 input files are bad.*allows \(1\).*qcd_bad.*ttbar_bad"
    ):
        three_bad.ingest(on_bad_file="skip", max_bad_files=1)
    assert list((three_bad.run_dir / "ingest").glob("*")) == []
    three_bad.ingest(on_bad_file="skip", max_bad_files=3)
    assert len(three_bad.counters("ingest")["bad_files"]) == 3


@pytest.mark.parametrize("kind_name", KINDS)
@pytest.mark.slow
def test_a_sample_of_bad_files_alone_names_the_cause(analysis: Incoming, kind_name: str) -> None:
    make, _, message = KINDS[kind_name]
    make(analysis.data / "qcd_0.root")
    with pytest.raises(
        EmptySampleError,
        match=rf"(?s)sample 'qcd': no file of it can be read; the first: \S*qcd_0\.root {message}",
    ):
        analysis.ingest(on_bad_file="skip")


@pytest.mark.parametrize(
    ("at", "kind_name"),
    [
        ("uproot.open", ImportError),
        ("uproot.open", AttributeError),
        ("ingestion.reader.piece_edges", NameError),
        ("uproot.behaviors.TBranch.TBranch.array", AttributeError),
        ("uproot.behaviors.TBranch.TBranch.array", TypeError),
    ],
)
def test_an_error_of_a_program_is_no_damage_and_stops_even_where_bad_files_are_skipped(
    analysis: Incoming, monkeypatch: pytest.MonkeyPatch, at: str, kind_name: type[Exception]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise kind_name("module 'numpy' has no attribute 'unicode_'")

    with monkeypatch.context() as patch:
        patch.setattr(at, broken)
        with pytest.raises(InputFileError, match="3 input files are bad") as raised:
            analysis.ingest(on_bad_file="skip")
    assert "is damaged" not in str(raised.value)
    assert "unicode_" in str(raised.value)
    # Nothing is remembered: once it is repaired, all files are read.
    analysis.ingest(on_bad_file="skip")
    assert analysis.counters("ingest")["bad_files"] == []
    assert analysis.counters("ingest")["files_read"] == 3


@pytest.mark.parametrize("index", [errno.EMFILE, errno.ENOTCONN])
def test_a_temporary_error_of_the_system_skips_no_file(
    analysis: Incoming, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    """A dead mount, or too many open files: the next run said `up to date` without the events of the file."""

    def failing(path: str) -> Any:
        if "qcd_1" in path:
            raise OSError(index, os.strerror(index))
        return open_root(path)

    write_good(analysis.data / "qcd_1.root")
    with monkeypatch.context() as patch:
        patch.setattr("ingestion.reader.open_root", failing)
        patch.setattr("tenacity.nap.time.sleep", lambda _: None)
        analysis.ingest(on_bad_file="skip")
    assert bad_of(analysis.counters("ingest")) == [("qcd", "qcd_1.root", "UnreachableFileError")]
    analysis.ingest(on_bad_file="skip")
    assert (
        analysis.counters("ingest")["files_read"],
        analysis.counters("ingest")["bad_files"],
    ) == (1, [])


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
    def full(*_: object, **__: object) -> None:
        raise error

    source = source_of("qcd", 0, str(write_good(tmp_path / "a.root")))
    monkeypatch.setattr(uproot, "open", full)
    with pytest.raises(type(error)):
        inventory([source], IngestSettings(on_bad_file="skip"))


def test_a_damaged_file_is_read_again_with_other_packages(
    analysis: Incoming, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(write_good(analysis.data / "qcd_1.root"))
    analysis.ingest(on_bad_file="skip")
    opened: list[str] = []
    real = uproot.open
    monkeypatch.setattr(
        uproot,
        "open",
        lambda *args, **kwargs: (opened.append(str(args[0])), real(*args, **kwargs))[1],
    )
    analysis.ingest(on_bad_file="skip")
    assert opened == []
    monkeypatch.setattr("pipeline.stages.ingest.package_versions", lambda: {"uproot": "another"})
    analysis.ingest(on_bad_file="skip")
    assert any("qcd_1.root" in path for path in opened)


@pytest.mark.parametrize("position", [0, 1])
def test_parts_of_a_version_whose_files_were_deleted_are_read_again(
    analysis: Incoming, position: int
) -> None:
    analysis.ingest()
    uuids = sorted({chunk["file_uuid"] for chunk in analysis.counters("ingest")["parts"]})
    (gone,) = (analysis.folder_of("ingest") / "events").glob(f"{uuids[position]}*")
    gone.unlink()
    write_good(analysis.data / "qcd_1.root")
    analysis.ingest()
    assert analysis.counters("ingest")["files_read"] == 2
    assert (analysis.folder_of("ingest") / "events" / gone.name).is_file()
