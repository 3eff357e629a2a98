"""Files of three samples, and runs of the stages `ingest` and `features` over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_line import small_config
from delphes_files import write_delphes
from made_events import Row, lepton, made_event, track
from rich.console import Console
from stages_here import run_here

from pipeline.config import load_config
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs.store import Version

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
        features = {"feed_workers": 1, "split": {"train": 0.4, "val": 0.3, "test": 0.3}, **changes.pop("features", {})}
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
