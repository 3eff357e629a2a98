"""What patterns of samples name: braces, links to nothing, and the files that several samples
lack."""

from __future__ import annotations

from pathlib import Path

import pytest
from delphes_files import write_delphes
from event_rows import event_row, lepton

from hep_core.paths import expand_braces
from ingestion.errors import BadFilesError, FilesToComeError, NoFilesError
from ingestion.files import inventory
from ingestion.settings import IngestSettings, OnBadFile, SampleSettings
from ingestion.sources import expand


def sample(name: str, *files: Path | str) -> SampleSettings:
    return SampleSettings(name=name, label=0, files=[str(file) for file in files])


def touched(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


@pytest.mark.parametrize(
    ("pattern", "patterns"),
    [
        ("{a,b}*.root", ["a*.root", "b*.root"]),
        ("x{a,}.root", ["xa.root", "x.root"]),
        ("{a,b{1,2}}.root", ["a.root", "b1.root", "b2.root"]),
        ("{8..10}.root", ["8.root", "9.root", "10.root"]),
        ("{08..10}.root", ["08.root", "09.root", "10.root"]),
        ("{2..1}.root", ["2.root", "1.root"]),
        ("{a}.root", ["{a}.root"]),
        ("[{]a,b}/{1,2}.root", ["[{]a,b}/1.root", "[{]a,b}/2.root"]),
        ("root://s//{a,b}.root", ["root://s//a.root", "root://s//b.root"]),
    ],
)
def test_braces_are_as_in_a_shell(pattern: str, patterns: list[str]) -> None:
    assert expand_braces(pattern) == patterns


def test_each_choice_in_braces_needs_a_file(tmp_path: Path) -> None:
    touched(tmp_path, "a1.root", "b1.root", "{a,b}.root")
    paths = [Path(source.path).name for source in expand([sample("x", tmp_path / "{b,a}*.root")])]
    assert paths == ["b1.root", "a1.root"]
    assert [
        Path(source.path).name for source in expand([sample("x", tmp_path / "{a,b}.root")])
    ] == ["{a,b}.root"]
    with pytest.raises(FilesToComeError, match=r"no file matches '.*/c\*\.root'"):
        expand([sample("x", tmp_path / "{a,c}*.root")])


def test_missing_files_of_several_samples_are_named_together(tmp_path: Path) -> None:
    touched(tmp_path, "a.root")
    samples = [
        sample("x", tmp_path / "a1.root"),
        sample("y", tmp_path / "a.root"),
        sample("z", tmp_path / "b*.root"),
    ]
    with pytest.raises(
        NoFilesError, match=r"(?s)^sample 'x': .*a1\.root.*\nsample 'z': .*b\*\.root"
    ) as caught:
        expand(samples)
    assert not isinstance(caught.value, FilesToComeError)
    with pytest.raises(FilesToComeError):
        expand(samples[1:])


@pytest.mark.parametrize("pattern", ["link.root", "l*.root"])
def test_a_link_to_nothing_is_named_beside_the_faults_of_other_files(
    tmp_path: Path, pattern: str
) -> None:
    (tmp_path / "link.root").symlink_to(tmp_path / "gone.root")
    (tmp_path / "text.root").write_text("no ROOT file, but text")
    sources = expand([sample("x", tmp_path / pattern), sample("y", tmp_path / "text.root")])
    with pytest.raises(BadFilesError) as caught:
        inventory(sources, IngestSettings())
    message = str(caught.value)
    assert (
        f"link.root is a link to '{tmp_path / 'gone.root'}', which is not there. Correct or remove"
        in message
    )
    assert "text.root is not a ROOT file" in message


def test_a_link_to_nothing_is_skipped_like_other_bad_files(tmp_path: Path) -> None:
    (tmp_path / "link.root").symlink_to("link.root")
    good = write_delphes(tmp_path / "a.root", [event_row(electrons=[lepton(40.0, 0, 0)])])
    actual = inventory(
        expand([sample("x", good, tmp_path / "link.root")]),
        IngestSettings(on_bad_file=OnBadFile.SKIP),
    )
    assert [Path(file.path).name for file in actual.bad] == ["link.root"]


@pytest.mark.parametrize("pattern", ["data/*.root", "data/x/a.root"])
def test_a_folder_that_is_a_link_to_nothing_is_named(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "data").symlink_to("disk2")
    with pytest.raises(
        NoFilesError, match=r"'[^']*/data' is a link to 'disk2', which is not there"
    ):
        expand([sample("x", tmp_path / pattern)])


def test_an_empty_path_is_named_as_such() -> None:
    sample = SampleSettings(name="qcd", label=0, files=["", "a.root"])

    with pytest.raises(NoFilesError, match="sample 'qcd': a path is empty"):
        expand([sample])
