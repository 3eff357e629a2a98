"""Finding and checking files; messages about bad files say what, where and what to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import numpy as np
import pytest
import uproot
from delphes_files import checked_files, source_of, write_delphes
from event_rows import event_row

from hep_core.input_errors import UnreadableFileError
from ingestion.errors import ConflictingFilesError, MissingTreeError, NoFilesError
from ingestion.files import SourceFile, expand, inventory
from ingestion.settings import IngestSettings, SampleSettings


def test_expand_sorts_the_files_of_a_glob(tmp_path: Path) -> None:
    for name in ("b.root", "a.root", "c.txt"):
        (tmp_path / name).touch()
    sample = SampleSettings(name="qcd", label=2, files=[str(tmp_path / "*.root")])

    sources = expand([sample])

    assert [Path(source.path).name for source in sources] == ["a.root", "b.root"]
    assert [source.sample for source in sources] == [sample, sample]


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
    second_sample = SampleSettings(name="other", label=1, files=[str(tmp_path / "a.root")])
    samples = [second_sample, *qcd(*[tmp_path / pattern for pattern in patterns])]
    report = Mock()

    with pytest.raises(NoFilesError, match=message):
        expand(samples, on_unmatched=report if is_listening else None)

    report.assert_not_called()


def test_brackets_in_the_name_of_a_folder_are_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run[2024]").mkdir()
    monkeypatch.chdir(tmp_path / "run[2024]")
    Path("a.root").touch()
    report = Mock()

    with pytest.raises(NoFilesError, match=r"no file matches '/.*run\[2024\]/b\.root'"):
        expand(qcd("a.root", "b.root"), on_unmatched=report)

    report.assert_not_called()


@pytest.mark.parametrize("count", [0, 2])
def test_a_good_file_gives_uuid_entries_and_size_and_keeps_its_identity(
    tmp_path: Path, count: int
) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row()] * count)
    size = path.stat().st_size

    (info,) = checked_files(path)
    (renamed,) = checked_files(path.rename(tmp_path / "b.root"))

    assert (info.entries, info.size, len(info.uuid)) == (count, size, 36)
    assert renamed.uuid == info.uuid


def test_known_files_are_not_opened_again(tmp_path: Path) -> None:
    path = write_delphes(tmp_path / "a.root", [event_row()])
    (info,) = checked_files(path)
    # A number that only the earlier check can have.
    same_time = info._replace(entries=12345)
    changed_time = same_time._replace(modified="long ago")
    source = source_of("other", 1, str(path))

    (recalled,) = inventory([source], IngestSettings(), known={str(path): same_time}).infos
    (inspected,) = inventory([source], IngestSettings(), known={str(path): changed_time}).infos

    assert (recalled.entries, recalled.sample, recalled.label) == (12345, "other", 1)
    assert inspected.entries == 1


def write_histogram(path: Path) -> None:
    with uproot.recreate(path) as file:
        file["Delphes"] = np.histogram([1.0, 2.0])


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda path: path.write_text("this is not ROOT at all, but long"),
            UnreadableFileError,
            "is not a ROOT file.*b'this'",
        ),
        (Path.touch, UnreadableFileError, "not a ROOT file"),
        (Path.mkdir, UnreadableFileError, r"is a folder.*\*\.root"),
        (os.mkfifo, UnreadableFileError, "no ordinary file"),
        (write_histogram, MissingTreeError, "'Delphes' is a TH1D; a TTree or an RNTuple is read"),
        (
            lambda path: write_delphes(path, [event_row()], tree="Delfes"),
            MissingTreeError,
            r"no tree 'Delphes'.*It holds: Delfes \(TTree\).*ingest\.tree",
        ),
    ],
)
def test_a_path_that_is_not_an_input_file_is_named(
    tmp_path: Path, write: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    path = tmp_path / "a.root"
    write(path)

    with pytest.raises(error, match=message) as caught:
        checked_files(path)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize("url", ["root://host//a.root", "nonsense://host/a.root"])
def test_a_url_without_its_plug_in_says_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If the plug-in is installed, it cannot be imported here.
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


def weights_of_files(*sources: SourceFile) -> list[str]:
    """The branch of the weight of each file, as the check of the files finds it."""
    return [info.weight for info in inventory(list(sources), IngestSettings()).infos]


def test_weights_in_some_files_of_a_class_only_are_refused(tmp_path: Path) -> None:
    present = write_delphes(tmp_path / "present.root", [event_row()])
    absent = write_delphes(tmp_path / "absent.root", [event_row()], without=["Event.Weight"])
    empty = write_delphes(tmp_path / "empty.root", [], without=["Event.Weight"])
    with_weights = source_of("a", 0, str(present))

    message = (
        r"'a': .*present\.root has weights of a generator, "
        r".*'b'.* no branch of them.*`weight: none`"
    )
    with pytest.raises(ConflictingFilesError, match=message):
        weights_of_files(with_weights, source_of("b", 0, str(absent)))
    # Each class has its own scale, and a file without events needs no weights.
    assert len(weights_of_files(with_weights, source_of("b", 1, str(absent)))) == 2
    assert len(weights_of_files(with_weights, source_of("b", 0, str(empty)))) == 2
    stated = source_of("b", 0, str(absent), weight="none")
    assert weights_of_files(with_weights, stated) == ["Event.Weight", "none"]


def test_files_of_zero_uuid_are_known_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_uuid = partial(uproot.recreate, uuid_function=lambda: UUID(int=0))
    monkeypatch.setattr(uproot, "recreate", without_uuid)
    first = write_delphes(tmp_path / "a.root", [event_row()])
    second = write_delphes(tmp_path / "b.root", [event_row()] * 2)

    uuids = {info.uuid for info in checked_files(first, second)}

    assert len(uuids) == 2
    assert str(UUID(int=0)) not in uuids
    shutil.copyfile(first, tmp_path / "c.root")
    with pytest.raises(ConflictingFilesError, match=r"a\.root and sample 'made': .*c\.root"):
        checked_files(first, tmp_path / "c.root")
