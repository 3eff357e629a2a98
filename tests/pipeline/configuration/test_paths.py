"""Which folders outputs can go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion.paths import PathError
from pipeline.configuration.paths import chosen_folder, local_folder
from pipeline.errors import ConfigError


@pytest.mark.parametrize("url", ["s3://bucket/run", Path("s3://bucket/run"), "file:///tmp/run"])
def test_urls_are_refused(url: str | Path) -> None:
    with pytest.raises(ValueError, match="is a URL, and outputs go to local file systems only"):
        local_folder(url)


def test_the_home_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_folder("~/run") == tmp_path / "run"
    assert local_folder("~") == tmp_path
    assert local_folder("a/~b") == Path("a/~b")
    with pytest.raises(PathError, match="write the whole path"):
        local_folder("~nobody-of-this-name/run")


@pytest.mark.parametrize("name", ["a#b?", "ü b", "c:", "../a"])
def test_other_names_are_taken_as_they_are(name: str) -> None:
    assert local_folder(name) == Path(name)


def test_of_a_folder_on_the_command_line_the_option_is_named() -> None:
    assert chosen_folder(Path("runs/a"), "--out") == Path("runs/a")
    with pytest.raises(ConfigError, match=r"^--out: 's3:/bucket/a' is a URL"):
        chosen_folder(Path("s3://bucket/a"), "--out")
