"""Paths are as in a shell, where Python's own glob and fsspec's differ from it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import fsspec
import pytest

from hep_core.input_errors import UnreadableFileError
from hep_core.paths import ExpandedPath, PathError, expand_path, expand_pattern, local_matches
from hep_core.storage import matching_files

NAMES = (
    *(
        "a.root",
        "b c.root",
        "d/e.root",
        "d/f/g.root",
        "d/.hidden.root",
        ".dot/h.root",
        "d[1]/i.root",
        "x::y.root",
    ),
    *(
        "p%20q.root",
        "r#s.root",
        "ü.root",
        "new\nline.root",
        "q?.root",
        "d/.deep/j.root",
        "k.txt",
        "-dash.root",
    ),
)
PATTERNS = (
    *("*.root", "**.root", "**/*.root", "d/**", "d/**/g.root", "**/f/**/*.root", "./**/e.root", "**/**/e.root"),
    *("*/*.root", "d[[]1]/*.root", "**/.*.root", ".dot/**/*.root", "[a-b]*.root", "???.root", "no/**/*.root"),
    "d//**/*.root",
)  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_pattern_matches_as_in_a_shell(tree: Path, pattern: str, absolute: bool) -> None:
    bash = shutil.which("bash")
    assert bash
    if absolute:
        pattern = f"{tree}/{pattern}"
    script = f'shopt -s globstar nullglob; for each in {pattern}; do [ -d "$each" ] || printf \'%s\\0\' "$each"; done'
    output = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True).stdout
    expected = {os.path.normpath(word) for word in output.split("\0")[:-1]}
    actual = local_matches(pattern)
    assert [*map(os.path.normpath, actual)] == sorted(expected)
    assert actual == matching_files(pattern)


def test_links_to_folders_are_followed_only_where_they_are_named(tree: Path) -> None:
    # Bash follows some of them below `**`; a circle would give each file many times.
    (tree / "d" / "again").symlink_to(tree)
    (tree / "link").symlink_to(tree / "d")
    assert matching_files(f"{tree}/**/e.root") == [f"{tree}/d/e.root"]
    assert matching_files("link/**/*.root") == ["link/e.root", "link/f/g.root"]
    assert matching_files("d/again/**/again/e.root") == []
    assert matching_files("*/e.root") == ["d/e.root", "link/e.root"]


@pytest.mark.parametrize("name", NAMES)
def test_an_existing_name_is_no_pattern(tree: Path, name: str) -> None:
    assert matching_files(f"{tree}/{name}") == [f"{tree}/{name}"]


def test_two_stars_beside_letters_are_one_on_servers_too(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.filesystem("memory").pipe("/night/a.root", b"x")
    assert (
        matching_files("memory://night/**.root")
        == matching_files("memory://**/*.root")
        == ["memory:///night/a.root"]
    )


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.root")).touch()
    with pytest.raises(PathError, match=r"udcff.root' is no text"):
        matching_files(f"{tmp_path}/*.root")


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("~", "/home/ada"),
        ("~/a.root", "/home/ada/a.root"),
        ("$NIGHT/a.root", "/data/7/a.root"),
        ("${NIGHT}b/*.root", "/data/7b/*.root"),
        ("$SUB/a.root", "/my [1]/sub/a.root"),
        ("$SUB/*.root", "/my [1]/sub/*.root"),
        ("a.root", "/my [1]/a.root"),
        ("../a~b/$", "/my [1]/../a~b/$"),
        ("cost$.root", "/my [1]/cost$.root"),
        ("s3://$SUB/~/a.root", "s3://sub/~/a.root"),
        ("root://eos//~ada/a.root", "root://eos//~ada/a.root"),
        (ExpandedPath("$NIGHT"), "$NIGHT"),
    ],
)
def test_home_and_variables_are_expanded(
    monkeypatch: pytest.MonkeyPatch, message: str, path: str
) -> None:
    for name, value in {"HOME": "/home/ada", "NIGHT": "/data/7", "SUB": "sub"}.items():
        monkeypatch.setenv(name, value)
    assert expand_path(message, "/my [1]") == path


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("$SUB/*.root", "/[[]1] [{]a,b}/sub/*.root"),
        ("{c,d}.root", "/[[]1] [{]a,b}/{c,d}.root"),
        ("a.root", "/[[]1] [{]a,b}/a.root"),
        ("/data/*.root", "/data/*.root"),
        ("s3://bucket/{c,d}.root", "s3://bucket/{c,d}.root"),
    ],
)
def test_the_folder_of_a_pattern_is_no_pattern(
    monkeypatch: pytest.MonkeyPatch, text: str, pattern: str
) -> None:
    monkeypatch.setenv("SUB", "sub")
    assert expand_pattern(text, "/[1] {a,b}") == pattern


def test_an_existing_name_with_a_dollar_sign_stands_for_itself(tmp_path: Path) -> None:
    (tmp_path / "a$b.root").touch()
    assert expand_path("a$b.root", tmp_path) == f"{tmp_path}/a$b.root"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "$NIGHTS/a.root",
            r"'\$NIGHTS/a.root': the environment has no variable 'NIGHTS'. Nearest: NIGHT\b",
        ),
        ("${NIGHT:-x}/a.root", r"no variable 'NIGHT:-x'.* A variable is \$NAME or \$\{NAME\}"),
        ("${NIGHT/a.root", "no variable"),
        ("$TORCH_HOME/a.root", "commands ignore the variable 'TORCH_HOME'"),
        (
            "~nobody-of-this-name/a.root",
            "no home folder of '~nobody-of-this-name'; write the whole path",
        ),
    ],
)
def test_an_unknown_variable_or_user_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("NIGHT", "7")
    with pytest.raises(PathError, match=message):
        expand_path(text)


def test_a_folder_that_cannot_be_read_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(top: str, *, onerror: object) -> list[object]:
        assert callable(onerror)
        onerror(PermissionError(13, "Permission denied", f"{top}/d"))
        return []

    monkeypatch.setattr("os.walk", refuse)
    with pytest.raises((PermissionError, UnreadableFileError), match=r"/d'"):
        matching_files(f"{tree}/**/*.root")
