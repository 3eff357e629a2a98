"""Faults of the command line and of run folders that users met."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.runs import provenance
from pipeline.runs.lock import locked
from pipeline.runs.store import StageStore


@pytest.mark.parametrize("command", ["status", "validate", "plan"])
def test_they_are_shown_as_they_are(tmp_path: Path, command: str) -> None:
    """Square brackets in names, which rich reads as markup, ended commands as "a bug of the pipeline"."""
    config = small_config(tmp_path, SAMPLES)
    options = (f"run_dir={tmp_path / 'r[/b]'}", 'classes=["QCD", "ttbar", "W[/b]"]', "evaluate.signal=ttbar")
    changes = [word for option in options for word in ("--set", option)]
    done = CliRunner().invoke(app, [command, "--config", str(config), *changes])
    assert done.exit_code == 0, done.output
    if command != "plan":
        assert "[/b]" in done.output


@pytest.mark.parametrize("lacks", ["checkout", "commit", "git"])
def test_without_a_checkout_the_code_is_that_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Without a checkout, as in a container, a manifest said `unknown`, although the release is known."""
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    if lacks == "commit":
        (tmp_path / ".git").mkdir()
    if lacks == "git":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    assert provenance.code_version() == f"release {metadata.version('hep-pipeline')}"


def test_the_name_of_an_unfinished_version_is_not_used_again(tmp_path: Path) -> None:
    """After `kill -9` the next run took the same version folder name, where orphaned tasks could still write."""
    store = StageStore(tmp_path, "ingest")
    killed = store.next_folder("abcdef0123")
    store.begin(killed)
    assert store.next_folder("abcdef0123").name != killed.name


def test_the_name_goes_with_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert (tmp_path / ".lock").read_text() == ""
