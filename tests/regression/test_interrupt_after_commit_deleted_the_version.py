"""An interrupt that came after the pointer had been replaced removed the version that it names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from ingestion.settings import SampleSettings
from pipeline.config import Config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.store import StageStore, Version
from pipeline.stages.base import Context, Result, Stage, StageInputs


class Small(Stage):
    """Writes one file."""

    name: ClassVar[str] = "ingest"

    def config_items(self, config: Config) -> dict[str, Any]:
        return {"run_dir": str(config.run_dir)}

    def run(self, context: Context) -> Result:
        (context.out_dir / "data").write_text("whole")
        return Result(summary="done")


def runner(run_dir: Path) -> Runner:
    samples = [SampleSettings(name=f"s{label}", label=label, files=["x.root"]) for label in range(3)]
    config = Config(run_dir=run_dir, classes=["A", "B", "C"], samples=samples)
    return Runner(RunFolder(config, Console(file=io.StringIO())))


def make_small_version(run_dir: Path) -> None:
    begun, made_from = runner(run_dir), Fingerprint({}, {}, {})
    begun._make_version(Small(), begun._context(Small(), None, {}, StageInputs({}), made_from, frozenset()), made_from)


def test_a_published_version_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = StageStore.commit

    def interrupted(store: StageStore, folder: Path, manifest: dict[str, Any], **chosen: Any) -> Version:
        commit(store, folder, manifest, **chosen)
        raise KeyboardInterrupt

    monkeypatch.setattr(StageStore, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_small_version(tmp_path)
    current = StageStore(tmp_path, "ingest").current()
    assert current is not None
    assert (current.folder / "data").read_text() == "whole"


def test_an_unpublished_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(store: StageStore, folder: Path, manifest: dict[str, Any], **chosen: Any) -> Version:
        raise KeyboardInterrupt

    monkeypatch.setattr(StageStore, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_small_version(tmp_path)
    assert list((tmp_path / "ingest").iterdir()) == []
