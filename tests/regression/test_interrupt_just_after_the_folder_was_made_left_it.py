"""Ctrl-C between the making of a version folder and the work in it left the empty folder behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console

from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.store import StageStore


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StageStore.begin

    def interrupted(store: StageStore, folder: Path, **options: Any) -> None:
        begin(store, folder, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(StageStore, "begin", interrupted)
    runner = Runner(RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True)))
    with pytest.raises(KeyboardInterrupt):
        runner.run(["ingest"])
    assert not list((tmp_path / "run" / "ingest").iterdir())
