"""The command line and run folders: markup, versions of the code, damage of shared files."""

from __future__ import annotations

import errno
import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
from command_line import SAMPLES, in_use, small_config
from rich.console import Console
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.commands.status import verify
from pipeline.config import Config, load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs import outputs, provenance
from pipeline.runs.lock import locked
from pipeline.runs.store import StageStore
from pipeline.stages.base import Context, Part, Result, Stage


@pytest.mark.parametrize("command", ["status", "validate", "plan"])
def test_names_with_square_brackets_are_shown_as_they_are(tmp_path: Path, command: str) -> None:
    """Rich reads square brackets as markup."""
    config = small_config(tmp_path, SAMPLES)
    options = (
        f"run_dir={tmp_path / 'r[/b]'}",
        'classes=["QCD", "ttbar", "W[/b]"]',
        "evaluate.signal=ttbar",
    )
    arguments = [command, "--config", str(config)]
    for option in options:
        arguments += ["--set", option]

    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 0, result.output
    if command != "plan":
        assert "[/b]" in result.output


@pytest.mark.parametrize("lacks", ["checkout", "commit", "git"])
def test_without_a_checkout_the_code_is_that_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    if lacks == "commit":
        (tmp_path / ".git").mkdir()
    if lacks == "git":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    assert provenance.code_version() == f"release {metadata.version('hep-pipeline')}"


def test_the_name_of_an_unfinished_version_is_not_used_again(tmp_path: Path) -> None:
    """Orphaned tasks of a killed run may still write there."""
    store = StageStore(tmp_path, "ingest")
    killed = store.next_folder("abcdef0123")
    store.create(killed)
    assert store.next_folder("abcdef0123").name != killed.name


def test_the_lock_file_names_its_process_while_it_is_locked(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert (tmp_path / ".lock").read_text() == ""


class Networks(Stage):
    """Two networks; one that changed is trained again."""

    name: ClassVar[str] = "train"

    def __init__(self, **seeds: int) -> None:
        self.seeds = seeds

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def parts(self, config: Config) -> dict[str, Part]:  # noqa: ARG002
        return {name: Part({"seed": seed}, (), ()) for name, seed in self.seeds.items()}

    def run(self, context: Context) -> Result:
        for name in self.seeds.keys() - context.taken_over_parts:
            (context.out_dir / name / "weights.pt").write_bytes(bytes(1000))
            (context.out_dir / name / "run.json").write_text('{"seconds": 1}')
        return Result(summary="trained")


def refuse(*_: Any) -> NoReturn:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("has_links", [True, False])
def test_damage_of_a_reused_file_is_shown_until_the_network_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    """The next version must not hash the files again that it takes over."""
    # Damage of large files shows only where they are read whole.
    monkeypatch.setattr(outputs, "_READ_WHOLE", 0)
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    runner = Runner(run_folder)
    runner._run_stage(Networks(hlf=1, particles=1), force=False)
    first = in_use(run_folder.config.run_dir, "train")
    for name in ("hlf", "particles"):
        with (first.folder / name / "weights.pt").open("r+b") as file:
            file.write(b"x")
    runner._run_stage(Networks(hlf=1, particles=2), force=False)
    second = in_use(run_folder.config.run_dir, "train")
    assert verify(run_folder) == [str(second.folder / "hlf" / "weights.pt")]
    hlf_files = {file for file in first.files if file.path.startswith("hlf/")}
    assert len(hlf_files) == 3
    assert hlf_files <= set(second.files)
    runner._run_stage(Networks(hlf=1, particles=2), force=True)
    assert verify(run_folder) == []


def test_a_restored_file_is_no_longer_suspected(tmp_path: Path) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    runner = Runner(run_folder)
    runner._run_stage(Networks(hlf=1), force=False)
    path = in_use(run_folder.config.run_dir, "train").folder / "hlf" / "weights.pt"
    file_bytes = path.read_bytes()
    path.write_bytes(b"x" * len(file_bytes))
    assert verify(run_folder) == [str(path)]
    path.write_bytes(file_bytes)
    suspected = path.parents[1] / outputs.SUSPECTED
    assert suspected.exists()
    assert not runner._run_stage(Networks(hlf=1), force=False)
    assert not suspected.exists()
