"""The stages `ingest` and `features` over files of our own, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from command_line import small_config
from delphes_files import write_delphes
from made_events import Row, lepton, made_event, track
from rich.console import Console
from stages_here import run_here, without_spark

from ingestion.errors import FilesToComeError
from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs.store import Version
from pipeline.stages.ingest import Ingest

NAMES = ("qcd", "ttbar", "wjets")
#: The first is of `qcd`.
FIRST = {name: 100 * number for number, name in enumerate(NAMES)}


def events(first: int, count: int = 40) -> list[Row]:
    """Events that all differ; every fourth has no lepton."""
    return [
        made_event(
            met=20.0 + first + n,
            electrons=[lepton(30.0 + n, 0.1, 0.2)] if n % 4 else [],
            tracks=[track(2.0 + first + n, 1.0, -1.0)],
        )
        for n in range(count)
    ]


class Night:
    """Files of three samples, and runs over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        for name, first in FIRST.items():
            write_delphes(self.data / f"{name}_0.root", events(first))

    def run(self, *stages: str, **changes: Any) -> str:
        """What is printed."""
        features = {"feed_workers": 1, "split": {"train": 0.4, "val": 0.3, "test": 0.3}}
        config = small_config(self.folder, self.data, features=features, **changes)
        return run_here(config, *stages or ("ingest", "features"))

    def runner(self) -> Runner:
        return Runner(RunFolder(load_config(str(self.folder / "config.yaml")), Console(quiet=True)))

    def version(self, stage: str) -> Version:
        version = self.runner().run_folder.store(stage).current()
        assert version is not None
        return version

    def events(self) -> int:
        """Number of events in the files in use."""
        samples = self.version("ingest").manifest["counters"]["samples"]
        return sum(counts["events"] for counts in samples.values())


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    without_spark(monkeypatch, tmp_path)
    return Night(tmp_path)


def test_a_file_of_copies_only_could_never_be_published(night: Night) -> None:
    """What the first read had written of it stayed in the folder, and the stage refused its own output."""
    night.run()
    before, data = night.events(), night.version("features").folder / "dataset.json"
    counts = json.loads(data.read_text())
    write_delphes(night.data / "qcd_copy.root", events(FIRST["qcd"]))
    said = night.run(ingest={"on_duplicate": "drop"})
    assert "40 copies left out" in said
    assert night.events() == before
    assert json.loads((night.version("features").folder / "dataset.json").read_text()) == counts


def test_features_could_not_be_made_again_without_the_root_files_that_they_do_not_read(night: Night) -> None:
    """Only a note about `ingest` needs the files: on tape, or with files to come, no later stage ran."""
    night.run()
    for path in night.data.iterdir():
        path.rename(path.with_suffix(".gone"))
    said = night.run("features", classes=["QCD", "ttbar", "W"])
    assert "note: ingest is stale (its input cannot be read: sample 'qcd': no file matches" in said
    assert "features: config classes changed" in said
    # What reads the files does not go on without them, nor is it called up to date.
    with pytest.raises(FilesToComeError):
        night.run("ingest")
    runner = night.runner()
    assert [each.state for each in runner.plan()[:2]] == [State.STALE, State.STALE]
    with pytest.raises(FilesToComeError):
        runner.accept()


def test_all_files_are_checked_once_in_a_run(night: Night) -> None:
    with patch.object(Ingest, "find_inputs", autospec=True, side_effect=Ingest.find_inputs) as found:
        night.run()
        assert found.call_count == 1
        night.run("features", classes=["QCD", "ttbar", "W"])
        assert found.call_count == 2
