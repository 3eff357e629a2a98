"""Finding and checking files: every kind of bad file gets a message that says what, where and what
to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import uproot
from delphes_files import checked_files, source_of, write_delphes
from event_rows import event_row

from hep_core.input_errors import UnreadableFileError
from ingestion.errors import ConflictingFilesError, MissingTreeError, NoFilesError
from ingestion.files import expand, inventory
from ingestion.settings import IngestSettings, SampleSettings


def test_expand_sorts_the_files_of_a_glob(tmp_path: Path) -> None:
    for name in ("b.root", "a.root", "c.txt"):
        (tmp_path / name).touch()
    results = expand([SampleSettings(name="qcd", label=2, files=[str(tmp_path / "*.root")])])
    assert [
        (result.sample.name, result.sample.label, Path(result.path).name) for result in results
    ] == [
        ("qcd", 2, "a.root"),
        ("qcd", 2, "b.root"),
    ]


def qcd(*patterns: Path | str) -> list[SampleSettings]:
    return [SampleSettings(name="qcd", label=0, files=[str(pattern) for pattern in patterns])]


@pytest.mark.parametrize(
    ("patterns", "is_listening", "message"),
    [
        (["ttbar_*.root"], True, r"sample 'qcd': no file matches '[^']*ttbar_\*\.root'\..*a\.root"),
        (
            ["*.root", "incoming/*.root"],
            False,
            r"no file matches '[^']*incoming/\*\.root'\. Nearest: [^ ]*a\.root\.",
        ),
        # A file that is named must be there.
        (
            ["*.root", "x*.root", "b.root"],
            True,
            r"no file matches '[^']*b\.root'\. Nearest: [^ ]*a\.root\.",
        ),
        (
            ["*.root", "incoming/b.root"],
            True,
            r"no file matches '[^']*incoming/b\.root'\. Nearest: [^ ]*a\.root\.",
        ),
        (
            ["w1*.root", "w2*.root"],
            True,
            r"no file matches '[^']*/w1\*\.root' or '[^']*/w2\*\.root'",
        ),
        (["absent/x/*.root"], True, r"Nearest: [^ ]*a\.root\."),
    ],
)
def test_a_path_that_matches_nothing_is_named_with_the_nearest(
    tmp_path: Path, patterns: list[str], is_listening: bool, message: str
) -> None:
    (tmp_path / "a.root").touch()
    reports: list[str] = []
    samples = [
        SampleSettings(name="other", label=1, files=[str(tmp_path / "a.root")]),
        *qcd(*(tmp_path / pattern for pattern in patterns)),
    ]
    with pytest.raises(NoFilesError, match=message):
        expand(samples, on_unmatched=reports.append if is_listening else None)
    assert reports == []


def test_brackets_in_the_name_of_a_folder_are_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was not there was left out with a note."""
    (tmp_path / "run[2024]").mkdir()
    monkeypatch.chdir(tmp_path / "run[2024]")
    Path("a.root").touch()
    reports: list[str] = []
    with pytest.raises(NoFilesError, match=r"no file matches '/.*run\[2024\]/b\.root'"):
        expand(qcd("a.root", "b.root"), on_unmatched=reports.append)
    assert reports == []


@pytest.mark.parametrize("count", [0, 2])
def test_a_good_file_gives_uuid_entries_and_size_and_keeps_its_identity(
    tmp_path: Path, count: int
) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row()] * count)
    (info,) = checked_files(path)
    assert (info.entries, info.size, len(info.uuid)) == (count, path.stat().st_size, 36)
    assert checked_files(path.rename(tmp_path / "b.root"))[0].uuid == info.uuid


def test_known_files_are_not_opened_again(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row()])
    (info,) = checked_files(path)
    remembered = info._replace(entries=12345)
    source = [source_of("other", 1, str(path))]
    (repeated,) = inventory(source, IngestSettings(), known={str(path): remembered}).infos
    assert (repeated.entries, repeated.sample, repeated.label) == (12345, "other", 1)
    path.touch()
    changed_time = remembered._replace(modified="long ago")
    assert (
        inventory(source, IngestSettings(), known={str(path): changed_time}).infos[0].entries == 1
    )


def histogram(path: Path) -> None:
    with uproot.recreate(path) as file:
        file["Delphes"] = np.histogram([1.0, 2.0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda path: path.write_text("this is not ROOT at all, but long"),
            UnreadableFileError,
            "is not a ROOT file.*b'this'",
        ),
        (Path.touch, UnreadableFileError, "not a ROOT file"),
        (Path.mkdir, UnreadableFileError, r"is a folder.*\*\.root"),
        (os.mkfifo, UnreadableFileError, "no ordinary file"),
        (histogram, MissingTreeError, "'Delphes' is a TH1D; a TTree or an RNTuple is read"),
        (
            lambda path: write_delphes(path, [event_row()], tree="Delfes"),
            MissingTreeError,
            r"no tree 'Delphes'.*It holds: Delfes \(TTree\).*ingest\.tree",
        ),
    ],
)
def test_a_path_that_is_not_an_input_file_is_named(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    path = tmp_path / "a.root"
    make(path)

    with pytest.raises(error, match=message) as caught:
        checked_files(path)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize("url", ["root://host//a.root", "nonsense://host/a.root"])
def test_a_url_without_its_plug_in_says_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where it is installed, it cannot be imported here.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "root", raising=False)
    for module in ("fsspec_xrootd", "fsspec_xrootd.xrootd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnreadableFileError, match="fsspec-xrootd"):
        expand([SampleSettings(name="qcd", label=0, files=[url])])


def test_the_same_file_twice_names_both_places(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row()])
    copy = Path(shutil.copy(path, tmp_path / "copy.root"))
    with pytest.raises(ConflictingFilesError, match="is listed twice") as caught:
        checked_files(path, copy)
    assert str(path) in str(caught.value)
    assert str(copy) in str(caught.value)


def test_weights_in_some_files_of_a_class_only_are_refused(tmp_path: Path) -> None:
    events = [event_row()]
    present = write_delphes(tmp_path / "present.root", events)
    absent = write_delphes(tmp_path / "absent.root", events, without=["Event.Weight"])
    for label in (0, 1):
        sources = [source_of("a", 0, str(present)), source_of("b", label, str(absent))]
        if label == 0:
            message = r"'a': .*present\.root has weights of a generator, .*'b'.* no branch of them.*`weight: none`"
            with pytest.raises(ConflictingFilesError, match=message):
                inventory(sources, IngestSettings())
        else:
            # The scale of a class is its own.
            assert len(inventory(sources, IngestSettings()).infos) == 2
    stated = [source_of("a", 0, str(present)), source_of("b", 0, str(absent), weight="none")]
    assert [info.weight for info in inventory(stated, IngestSettings()).infos] == [
        "Event.Weight",
        "none",
    ]
    empty = write_delphes(tmp_path / "empty.root", [], without=["Event.Weight"])
    assert [info.entries for info in checked_files(present, empty)] == [1, 0]


def test_files_of_zero_uuid_are_known_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        uproot, "recreate", partial(uproot.recreate, uuid_function=lambda: UUID(int=0))
    )
    first = write_delphes(tmp_path / "a.root", [event_row()])
    second = write_delphes(tmp_path / "b.root", [event_row()] * 2)
    uuids = {info.uuid for info in checked_files(first, second)}
    assert len(uuids) == 2
    assert str(UUID(int=0)) not in uuids
    shutil.copyfile(first, tmp_path / "c.root")
    with pytest.raises(ConflictingFilesError, match=r"a\.root and sample 'made': .*c\.root"):
        checked_files(first, tmp_path / "c.root")
