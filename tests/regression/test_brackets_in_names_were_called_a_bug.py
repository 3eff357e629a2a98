"""Square brackets in names, which rich reads as markup, ended commands as "a bug of the pipeline"."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from typer.testing import CliRunner

from pipeline.cli import app


@pytest.mark.parametrize("command", ["status", "validate", "plan"])
def test_they_are_shown_as_they_are(tmp_path: Path, command: str) -> None:
    config = small_config(tmp_path, SAMPLES)
    options = (f"run_dir={tmp_path / 'r[/b]'}", 'classes=["QCD", "ttbar", "W[/b]"]', "evaluate.signal=ttbar")
    changes = [word for option in options for word in ("--set", option)]
    done = CliRunner().invoke(app, [command, "--config", str(config), *changes])
    assert done.exit_code == 0, done.output
    if command != "plan":
        assert "[/b]" in done.output
